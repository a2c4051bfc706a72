# Finds the Python and the Java that Ebbtide runs on. Sourced, never run; installs nothing.
# shellcheck shell=bash

python_versions="3.14 3.13 3.12 3.11" # newest first; pyproject.toml says the same
java_version_min=17

# python_at COMMAND VERSION: prints the interpreter behind COMMAND if it runs, is VERSION and can
# make a virtual environment. A virtual environment's python answers with the one it came from, and
# a free-threaded build is no answer, for not every dependency has wheels for it.
python_at() {
    "$1" -I - "$2" 2>/dev/null <<'PYTHON'
import ensurepip, os, sqlite3, ssl, sys, sysconfig, venv

version = "%d.%d" % sys.version_info[:2]
if sys.argv[1] not in ("any", version) or sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(1)
print(os.path.realpath(sys._base_executable))
PYTHON
}

# python_candidates VERSION: commands worth a try, one a line.
python_candidates() {
    local directory
    for directory in "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$1"*; do
        printf '%s\n' "$directory/bin/python3"
    done | sort -rV
    # Every match on PATH, not the first alone: the first may be a shim that does not run.
    type -aP "python$1" python3 || true
}

# find_python: prints the newest Python that really runs, or fails. EBBTIDE_PYTHON overrides.
find_python() {
    local version candidate
    for version in $python_versions; do
        if [ -n "${EBBTIDE_PYTHON:-}" ]; then
            python_at "$EBBTIDE_PYTHON" "$version" && return
            continue
        fi
        while read -r candidate; do
            python_at "$candidate" "$version" && return
        done < <(python_candidates "$version")
    done
    return 1
}

# java_home_of COMMAND: prints the home of the Java behind COMMAND if it runs and is new enough.
java_home_of() {
    local properties version home
    properties=$("$1" -XshowSettings:properties -version 2>&1 </dev/null) || return 1
    version=$(sed -n 's/^ *java\.specification\.version = //p' <<<"$properties")
    home=$(sed -n 's/^ *java\.home = //p' <<<"$properties")
    # Java 8 calls itself 1.8.
    [ "${version%%.*}" -ge "$java_version_min" ] 2>/dev/null && [ -x "$home/bin/java" ] &&
        printf '%s\n' "$home"
}

# find_java: prints a Java home, or fails. JAVA_HOME goes first, then PATH.
find_java() {
    local candidate
    # Spark is tried most on the oldest Java that it takes, so 17 and 21 go before the others.
    for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java \
        /usr/lib/jvm/*17*/bin/java /usr/lib/jvm/*21*/bin/java /usr/lib/jvm/*/bin/java; do
        [ -n "$candidate" ] && java_home_of "$candidate" && return
    done
    return 1
}
