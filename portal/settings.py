"""All settings. Values come from the environment (prefix GPUPOOL_); importing this starts nothing.

Required outside the demo and the tests: DATABASE_URL, REDIS_URL,
GPUPOOL_SECRET_KEY, GPUPOOL_TOKEN_PEPPER and GPUPOOL_URL. `.env.example`
explains each.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _
from kombu import Exchange, Queue

from portal import embedded
from portal.env import database, env_bool, env_int, env_list, env_secret, env_str, with_password

BASE_DIR = Path(__file__).resolve().parent.parent

# --- Where we are -------------------------------------------------------------

#: True: a private PostgreSQL and Redis, for the demo and the tests.
EMBEDDED = env_bool("GPUPOOL_EMBEDDED")
DEBUG = env_bool("GPUPOOL_DEBUG")
#: The demo's logins are shown on the login page, and its clock may be moved.
DEMO = env_bool("GPUPOOL_DEMO")
DATA_DIR = embedded.state_folder()

#: The address that people and nodes use; its scheme decides about cookies and redirects.
URL = env_str("GPUPOOL_URL", "http://127.0.0.1:8000" if EMBEDDED else "").rstrip("/")
_url = urlsplit(URL)
if _url.scheme not in ("http", "https") or not _url.hostname:
    raise ImproperlyConfigured("GPUPOOL_URL must be the portal's address, such as https://gpupool.example.")
HTTPS = _url.scheme == "https"

_private = embedded.addresses(DATA_DIR) if EMBEDDED else (None, None)
try:
    _database_url = with_password(
        env_secret("DATABASE_URL", _private[0]), env_secret("DATABASE_PASSWORD", "")
    )
except ImproperlyConfigured as error:
    raise ImproperlyConfigured(f"{error} GPUPOOL_EMBEDDED=1 starts a private PostgreSQL instead.") from None
REDIS_URL = with_password(env_secret("REDIS_URL", _private[1]), env_secret("REDIS_PASSWORD", ""))
if urlsplit(REDIS_URL).scheme not in ("redis", "rediss"):
    raise ImproperlyConfigured("REDIS_URL must begin with redis:// or rediss://.")

#: Where nodes reach Redis, without credentials: each gets its own. Empty: commands travel by report only.
NODE_BROKER_URL = env_str("GPUPOOL_NODE_BROKER_URL")
if NODE_BROKER_URL and urlsplit(NODE_BROKER_URL).scheme not in ("redis", "rediss"):
    raise ImproperlyConfigured("GPUPOOL_NODE_BROKER_URL must begin with redis:// or rediss://.")
if EMBEDDED and not NODE_BROKER_URL:
    NODE_BROKER_URL = f"redis://{urlsplit(REDIS_URL).netloc.rpartition('@')[2]}/0"

#: Seconds between two reports of a node.
REPORT_SECONDS = env_int("GPUPOOL_REPORT_SECONDS", 15, least=1, most=300)

#: What puts a refusal into words for commands, as for REST and pages.
REFUSAL_WORDS = "portal.errors.problem"
#: What puts a message into words for mail, as for the inbox.
NOTICE_WORDS = "portal.noticewords.letter"

# --- Secrets ------------------------------------------------------------------

# An embedded start without them gets passing ones: nothing signed or hashed outlives the process.
SECRET_KEY = env_secret("GPUPOOL_SECRET_KEY", secrets.token_urlsafe(50) if EMBEDDED else None, least=32)
#: Mixed into the hash of every token, so that a stolen table of hashes is of no use.
TOKEN_PEPPER = env_secret("GPUPOOL_TOKEN_PEPPER", secrets.token_urlsafe(32) if EMBEDDED else None, least=32)

# --- Django -------------------------------------------------------------------

ALLOWED_HOSTS = env_list("GPUPOOL_ALLOWED_HOSTS") or [_url.hostname]
if EMBEDDED:
    ALLOWED_HOSTS += ["127.0.0.1", "localhost", "[::1]"]
CSRF_TRUSTED_ORIGINS = [f"{_url.scheme}://{_url.netloc}"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "rest_framework",
    "template_partials",
    "django_htmx",
    "csp",
    "pool",
]
MIDDLEWARE = [
    "portal.logs.RequestId",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.logs.actor",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]
ROOT_URLCONF = "portal.urls"
WSGI_APPLICATION = "portal.wsgi.application"
ASGI_APPLICATION = "portal.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            # So that no page has to load them.
            "builtins": ["template_partials.templatetags.partials", "portal.web.tags"],
        },
    }
]

#: Connections of the web process's pool; portal/asgi.py sets it, everything else has one a thread.
DATABASES = {"default": database(_database_url, env_int("GPUPOOL_DB_POOL", 0, most=200))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "gpupool:cache",
        "OPTIONS": {"socket_timeout": 0.25, "socket_connect_timeout": 0.25},
    }
}

AUTH_USER_MODEL = "pool.User"
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]

USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = True
LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("zh-hans", _("Simplified Chinese"))]
LOCALE_PATHS = [BASE_DIR / "locale"]

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
# Hashed names need collectstatic; demo, tests and debugging serve the files as they lie.
_plain = EMBEDDED or DEBUG
STATIC_ROOT = env_str("GPUPOOL_STATIC_ROOT", "" if _plain else str(BASE_DIR / "staticfiles")) or None
WHITENOISE_USE_FINDERS = _plain
WHITENOISE_AUTOREFRESH = _plain and not DEMO  # looks each file up anew instead of listing all at the start
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if _plain
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}

# --- Security -----------------------------------------------------------------

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
        "object-src": ["'none'"],
    }
}
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SECURE_SSL_REDIRECT = HTTPS
SECURE_REDIRECT_EXEMPT = [r"^(livez|readyz|healthz)$"]  # probes come without TLS, past the proxy
SECURE_HSTS_SECONDS = env_int("GPUPOOL_HSTS_SECONDS", 31_536_000 if HTTPS else 0)
SECURE_REFERRER_POLICY = "same-origin"
if env_bool("GPUPOOL_BEHIND_PROXY"):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
X_FRAME_OPTIONS = "DENY"
#: 1,250 nodes report bodies of some 10 KB; nothing legitimate comes near this.
DATA_UPLOAD_MAX_MEMORY_SIZE = 2_500_000
# HSTS for sibling domains and the browsers' preload list are the domain owner's choice, not ours.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

# --- Mail ---------------------------------------------------------------------

EMAIL_HOST = env_str("GPUPOOL_MAIL_HOST")
EMAIL_PORT = env_int("GPUPOOL_MAIL_PORT", 587, least=1, most=65_535)
EMAIL_HOST_USER = env_str("GPUPOOL_MAIL_USER")
EMAIL_HOST_PASSWORD = env_secret("GPUPOOL_MAIL_PASSWORD", "")
#: TLS from the first byte on port 465, else after STARTTLS; 0 for a relay on the same machine.
_tls = env_bool("GPUPOOL_MAIL_TLS", True)
EMAIL_USE_SSL = _tls and EMAIL_PORT == 465
EMAIL_USE_TLS = _tls and EMAIL_PORT != 465
EMAIL_TIMEOUT = 5
DEFAULT_FROM_EMAIL = env_str("GPUPOOL_MAIL_FROM") or f"gpupool@{_url.hostname}"
#: Without a server the demo prints its mail, and everything else sends none.
MAIL = bool(EMAIL_HOST) or DEMO
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if EMAIL_HOST else 'console'}.EmailBackend"

# --- REST ---------------------------------------------------------------------

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
}

# --- Celery (portal/celery.py) ------------------------------------------------


def _queue(name: str) -> Queue:
    """A queue that needs no binding in Redis, so that an emptied Redis loses no message silently."""
    return Queue(name, exchange=Exchange("", type="direct"), routing_key=name, no_declare=True)


CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_SERIALIZER = CELERY_EVENT_SERIALIZER = CELERY_RESULT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_STORE_ERRORS_EVEN_IF_IGNORED = False
CELERY_TASK_QUEUES = [_queue(name) for name in ("due", "reclaim", "slow")]
CELERY_TASK_DEFAULT_QUEUE = CELERY_TASK_DEFAULT_ROUTING_KEY = "slow"
CELERY_TASK_DEFAULT_EXCHANGE = ""
CELERY_TASK_CREATE_MISSING_QUEUES = False
CELERY_TASK_PUBLISH_RETRY = False
# For whoever sends: a broker that is gone or silent costs a quarter of a second, never a booking.
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, float] = {
    "socket_timeout": 0.25,
    "socket_connect_timeout": 0.25,
    "max_retries": 0,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE_FILENAME = str(DATA_DIR / "beat")
CELERY_BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    "due": {"task": "pool.tasks.due", "schedule": 2.0, "options": {"queue": "due", "expires": 2}},
    "slow": {"task": "pool.tasks.slow", "schedule": 15.0, "options": {"queue": "slow", "expires": 15}},
}

# --- Logs ---------------------------------------------------------------------

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "portal.logs.JsonFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "root": {"handlers": ["stderr"], "level": env_str("GPUPOOL_LOG_LEVEL", "INFO").upper()},
    "loggers": {
        "django": {"handlers": [], "propagate": True},
        "django.server": {"handlers": [], "propagate": True},
        # A line every two seconds for a lane that ran as it should says nothing.
        "celery.beat": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
    },
}
