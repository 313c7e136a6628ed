# `make install` puts kvd into a Python environment of its own; `make uninstall` removes what that put.
# DESTDIR is a stage in front of every path; what is installed knows nothing of it.
PYTHON ?= python3
prefix ?= /usr/local
bindir ?= $(prefix)/bin
pkgdir ?= $(prefix)/lib/kvd
sysconfdir ?= /etc
unitdir ?= $(prefix)/lib/systemd/system
sysusersdir ?= $(prefix)/lib/sysusers.d
tmpfilesdir ?= $(prefix)/lib/tmpfiles.d
udevrulesdir ?= $(prefix)/lib/udev/rules.d
bashdir ?= $(prefix)/share/bash-completion/completions
zshdir ?= $(prefix)/share/zsh/site-functions
fishdir ?= $(prefix)/share/fish/vendor_completions.d
# `no` leaves the dependencies out, for a package manager that brings them (and for tests).
INSTALL_DEPS ?= yes

stage = $(DESTDIR)$(pkgdir)
# With the dependencies of the build: the stage may be without.
stage_python = PYTHONPATH="$$(echo "$(stage)"/lib/python*/site-packages)" $(PY) -P
conf = $(DESTDIR)$(sysconfdir)/kvd/kvd.toml
wheel_pip = PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m pip --disable-pip-version-check
stage_pip = $(wheel_pip) --python "$(stage)/bin/python" install -qq --no-compile --no-warn-script-location
COMPLETIONS = bash:$(bashdir)/kvctl zsh:$(zshdir)/_kvctl fish:$(fishdir)/kvctl.fish
INSTALLED_FILES = $(unitdir)/kvd.service $(sysusersdir)/kvd.conf $(tmpfilesdir)/kvd.conf \
	$(udevrulesdir)/70-kvd.rules $(foreach pair,$(COMPLETIONS),$(lastword $(subst :, ,$(pair))))

build/dist/.wheel: $(VENV)/.setup $(SOURCES)
	@mkdir -p build && rm -rf build/dist
	$(wheel_pip) wheel -qq --no-build-isolation --no-deps -Cbuild-dir=build/wheel -w build/dist .
	@# By name, so that the lock's hashes bind them; the wheel is ours and has none.
	$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
		>build/dist/dependencies.txt
	touch $@

install: build/dist/.wheel ## install to prefix=/usr/local (DESTDIR, bindir, unitdir, ... as usual)
	rm -rf "$(stage)"
	install -d "$(stage)/share" "$(DESTDIR)$(bindir)" "$(dir $(conf))"
	$(PYTHON) -m venv --without-pip "$(stage)"
	$(if $(filter no,$(INSTALL_DEPS)),,$(stage_pip) -c requirements/lock.txt -r build/dist/dependencies.txt)
	@# By name: the path of a wheel would be written down in what is installed.
	$(stage_pip) --no-deps --no-index --find-links build/dist kvd
	"$(stage)/bin/python" -m compileall -q $(if $(DESTDIR),-s "$(abspath $(DESTDIR))" -p /) "$(abspath $(stage))/lib"
	rm -f "$(stage)"/bin/[Aa]ctivate*
	grep -rlIF -- "$(abspath $(stage))" "$(stage)"/bin "$(stage)"/pyvenv.cfg | \
		xargs -r -d '\n' sed -i 's|$(abspath $(stage))|$(pkgdir)|g'
	$(stage_python) -m kvd --print-config >"$(stage)/share/kvd.toml"
	for pair in $(COMPLETIONS); do \
		$(stage_python) -m kvctl completion $${pair%%:*} >"$(stage)/share/completion" && \
		install -D -m 0644 "$(stage)/share/completion" "$(DESTDIR)$${pair#*:}" || exit 1; \
	done
	rm "$(stage)/share/completion"
	[ -e "$(conf)" ] || install -m 0644 "$(stage)/share/kvd.toml" "$(conf)"
	for name in kvd kvctl kvd-card; do ln -sfn "$(pkgdir)/bin/$$name" "$(DESTDIR)$(bindir)/$$name" || exit 1; done
	sed 's|@bindir@|$(bindir)|g' systemd/kvd.service >"$(stage)/share/kvd.service"
	install -D -m 0644 "$(stage)/share/kvd.service" "$(DESTDIR)$(unitdir)/kvd.service"
	install -D -m 0644 systemd/kvd.sysusers "$(DESTDIR)$(sysusersdir)/kvd.conf"
	install -D -m 0644 systemd/kvd.tmpfiles "$(DESTDIR)$(tmpfilesdir)/kvd.conf"
	install -D -m 0644 systemd/70-kvd.rules "$(DESTDIR)$(udevrulesdir)/70-kvd.rules"
	@[ -n "$(DESTDIR)" ] || echo "kvd: installed; next: systemd-sysusers && systemd-tmpfiles --create &&" \
		"systemctl daemon-reload && systemctl enable --now kvd"

uninstall: ## remove what install put; keep a kvd.toml that was edited
	if cmp -s "$(stage)/share/kvd.toml" "$(conf)"; then rm -f "$(conf)"; \
		elif [ -e "$(conf)" ]; then echo "kvd: keeping $(conf): it was edited" >&2; fi
	rmdir --ignore-fail-on-non-empty "$(dir $(conf))" 2>/dev/null || true
	for name in kvd kvctl kvd-card; do \
		link="$(DESTDIR)$(bindir)/$$name"; \
		[ "$$(readlink "$$link")" != "$(pkgdir)/bin/$$name" ] || rm -f "$$link"; \
	done
	rm -f $(foreach file,$(INSTALLED_FILES),"$(DESTDIR)$(file)")
	[ ! -e "$(stage)/share/kvd.toml" ] || rm -rf "$(stage)"
