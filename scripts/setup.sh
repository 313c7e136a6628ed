#!/usr/bin/env bash
# Install what kvd needs from the distribution and make the Python environment.  Usage: setup.sh VENV
set -euo pipefail

venv=$1
packages=(gcc pkg-config python3-dev python3-venv fuse3 libfuse3-dev liburing-dev libzstd-dev libcmocka-dev ca-certificates)

missing=()
for package in "${packages[@]}"; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
	root=()
	if [ "$(id -u)" != 0 ]; then
		command -v sudo >/dev/null || {
			echo "kvd: needs root to install: ${missing[*]}; run as root: apt-get install ${missing[*]}" >&2
			exit 1
		}
		root=(sudo)
	fi
	echo "kvd: installing ${missing[*]}" >&2
	export DEBIAN_FRONTEND=noninteractive
	log=$(mktemp)
	"${root[@]}" apt-get -qq update >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
	"${root[@]}" apt-get -qq install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
	rm -f "$log"
fi

echo "kvd: making the Python environment in $venv" >&2
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --upgrade 'pip>=24'
# Sources (pyfuse3) build against libfuse3 with the pinned tools, not with what is newest today.
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --require-hashes -r requirements/lock.txt
