# Messages, and the installing of system packages. Sourced, never run.
# Not for Python packages: scripts/setup installs those from the lock.
# shellcheck shell=bash

say() {
    printf '%s: %s\n' "${script_name:-ebbtide}" "$*"
}

fail() {
    say "$@" >&2
    exit 1
}

# can_install_packages: whether install_packages may be tried at all.
can_install_packages() {
    command -v apt-get >/dev/null || command -v dnf >/dev/null || command -v apk >/dev/null ||
        return 1
    [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

# quietly COMMAND...: the command's output is shown only when it fails.
quietly() {
    local output status=0
    output=$("$@" 2>&1 </dev/null) || status=$?
    [ "$status" -eq 0 ] || printf '%s\n' "$output" >&2
    return "$status"
}

# apt_get WORDS...: retries a mirror that answers badly, and waits for another apt-get to end.
apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq \
        -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@"
}

# refresh_package_lists: only apt-get needs telling.
refresh_package_lists() {
    local attempt
    command -v apt-get >/dev/null || return 0
    for attempt in 1 2 3; do
        quietly apt_get update && return
        sleep $((attempt * 5))
    done
    say "apt-get update failed: going on with the package lists that are there" >&2
}

# is_offered NAME: whether the system's package lists know this package.
is_offered() {
    if command -v apt-get >/dev/null; then
        # Of a purely virtual package show says nothing, and exits with 0 all the same.
        [ -n "$(apt-cache show --no-all-versions "$1" 2>/dev/null)" ]
    elif command -v dnf >/dev/null; then
        dnf -q list "$1" >/dev/null 2>&1 </dev/null
    else
        [ -n "$(apk search --exact "$1" 2>/dev/null)" ]
    fi
}

install_package() {
    if command -v apt-get >/dev/null; then
        # The JRE's post-install step links manual pages, and fails on images without this.
        as_root mkdir -p /usr/share/man/man1
        quietly apt_get install --yes --no-install-recommends "$1"
    elif command -v dnf >/dev/null; then
        quietly as_root dnf -q -y install "$1"
    else
        quietly as_root apk add --quiet "$1"
    fi
}

# install_first NAME...: installs the first of these packages that is offered. Names for apt-get,
# dnf and apk may stand in one list.
install_first() {
    local name
    for name in "$@"; do
        if is_offered "$name"; then
            install_package "$name" || return 1
            say "installed $name"
            return
        fi
    done
    return 1
}
