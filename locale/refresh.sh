#!/bin/sh
# Takes new sentences up into the catalogue and compiles it. Needs the package gettext; write what is
# missing into django.po, then run this again. Both files are committed, so that nobody else needs gettext.
set -eu
cd "$(dirname -- "$0")/.."
python=${PYTHON:-.venv/bin/python}
env -u DJANGO_SETTINGS_MODULE "$python" -m django makemessages --locale zh_Hans --no-wrap --no-obsolete --add-location file \
  --ignore '.*' --ignore tests --ignore agents --ignore bench --ignore build --ignore dist --ignore static --ignore staticfiles
catalogue=locale/zh_Hans/LC_MESSAGES/django
# The date of the extraction changes with every run and tells nothing.
sed -i.bak '/^"POT-Creation-Date:/d' "$catalogue.po" && rm "$catalogue.po.bak"
msgfmt --check-format --statistics -o "$catalogue.mo" "$catalogue.po"
