#!/usr/bin/env bash
# Makes echarts.min.js, the plotting library of the report's page, out of what npm has (the lock file holds versions and
# checksums), and the licences beside it. Plimsoll's own build does not run this: what it makes is committed.
#
#   ./build.sh          make it anew, and SHA256SUMS with it
#   ./build.sh --check  make it anew elsewhere, and say whether it is what is committed
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cp "$here"/{package.json,package-lock.json,entry.mjs} "$work"
cd "$work"
npm ci --ignore-scripts --no-audit --no-fund --silent
modules="$work/node_modules"
version="$(node -p 'require("echarts/package.json").version')"
zrender="$(node -p 'require("zrender/package.json").version')"
banner="/*! Apache ECharts $version (Apache-2.0, see LICENSE and NOTICE), with zrender $zrender (BSD-3-Clause, see LICENSE-zrender),
tslib (0BSD, see LICENSE-tslib) and parts of d3 (BSD-3-Clause, see LICENSE-d3). Only the charts of entry.mjs; made by build.sh. */"
"$modules/.bin/esbuild" entry.mjs --bundle --minify --format=iife --global-name=echarts --target=es2020 --charset=utf8 \
  --legal-comments=none --banner:js="$banner" --outfile=echarts.min.js --log-level=warning
if [ "${1:-}" = "--check" ]; then
  (cd "$here" && sha256sum --check --quiet SHA256SUMS)
  cmp echarts.min.js "$here/echarts.min.js"
  echo "echarts.min.js is what npm's packages give"
  exit
fi
cp echarts.min.js "$here/echarts.min.js"
cp "$modules/echarts/LICENSE" "$here/LICENSE"
cp "$modules/echarts/NOTICE" "$here/NOTICE"
cp "$modules/echarts/licenses/LICENSE-d3" "$here/LICENSE-d3"
cp "$modules/zrender/LICENSE" "$here/LICENSE-zrender"
cp "$modules/tslib/LICENSE.txt" "$here/LICENSE-tslib"
(cd "$here" && sha256sum echarts.min.js LICENSE NOTICE LICENSE-d3 LICENSE-zrender LICENSE-tslib > SHA256SUMS)
