# The portal (web, workers, beat) and the agent in one image; the command decides which.
FROM python:3.12-slim AS build
WORKDIR /app
RUN python -m venv /venv
COPY deploy/requirements.lock deploy/
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r deploy/requirements.lock
COPY . .
RUN GPUPOOL_URL=http://build.invalid DATABASE_URL=postgresql://build.invalid/none REDIS_URL=redis://build.invalid/0 \
    GPUPOOL_SECRET_KEY=only-while-static-files-are-collected GPUPOOL_TOKEN_PEPPER=only-while-static-files-are-collected \
    /venv/bin/python manage.py collectstatic --noinput

FROM python:3.12-slim
RUN useradd --system --uid 10001 --create-home gpupool \
    && install -d -o gpupool -g gpupool /var/lib/gpupool /var/lib/gpupool-invite
COPY --from=build /venv /venv
COPY --from=build /app /app
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 GPUPOOL_DATA_DIR=/var/lib/gpupool
WORKDIR /app
USER gpupool
EXPOSE 8000
CMD ["python", "-m", "portal.serve", "--host", "0.0.0.0", "--port", "8000"]
