#!/bin/sh
# Fetches the pinned front-end files anew and compares them with the ones in this folder.
#   static/vendor/refresh.sh          compare; exits 1 on any difference
#   static/vendor/refresh.sh --write  replace the files and SHA256SUMS (after a change of a version below)
# Needs npm, tar, sed and sha256sum. tabler/LICENSE is ours: the package names its licence but ships no text.
set -eu

HTMX=htmx.org@4.0.1
TABLER=@tabler/core@1.6.1

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

unpack() { # unpack NPM-SPEC FOLDER
  mkdir -p "$work/$2"
  archive=$(cd "$work" && npm pack --silent "$1")
  tar -xzf "$work/$archive" -C "$work/$2" --strip-components=1
}
unpack "$HTMX" from-htmx
unpack "$TABLER" from-tabler

mkdir -p "$work/htmx" "$work/tabler"
cp "$work/from-htmx/dist/htmx.min.js" "$work/from-htmx/LICENSE" "$work/htmx/"
# The source map is not shipped, and a reference to a missing file stops collectstatic.
sed '/^\/\*# sourceMappingURL=.*\*\/$/d' "$work/from-tabler/dist/css/tabler.min.css" >"$work/tabler/tabler.min.css"

files="htmx/htmx.min.js htmx/LICENSE tabler/tabler.min.css"
if [ "${1:-}" = "--write" ]; then
  for file in $files; do cp "$work/$file" "$here/$file"; done
  (cd "$here" && sha256sum $files tabler/LICENSE >SHA256SUMS)
  echo "written: $HTMX $TABLER"
  exit 0
fi
failed=0
for file in $files; do
  cmp -s "$work/$file" "$here/$file" || { echo "differs from the package: $file"; failed=1; }
done
(cd "$here" && sha256sum --check --quiet SHA256SUMS) || failed=1
[ "$failed" -eq 0 ] && echo "unchanged: $HTMX $TABLER"
exit "$failed"
