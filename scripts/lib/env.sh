# The environment in which the project's scripts run its programs. Source it after scripts/setup.
# shellcheck shell=bash

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
# shellcheck source=scripts/lib/find.sh
. "$root/scripts/lib/find.sh"

JAVA_HOME=$(find_java) || {
    echo "Java $java_version_min or newer is missing: run scripts/setup" >&2
    exit 1
}
export JAVA_HOME
export PATH="$root/.venv/bin:$JAVA_HOME/bin:$PATH"
# The program tells Spark which Python to start, and brings its own Spark. What the caller's shell
# says for another project would put a second version beside it.
unset PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON SPARK_HOME PYTHONHOME PYTHONPATH
# Each of the many processes that tests start would compile the program anew.
unset PYTHONDONTWRITEBYTECODE
# Spark on this machine alone needs no more than the loopback address; without this it looks up the
# machine's own name, which in a container often leads nowhere.
export SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}"

# compile_tests: in a new checkout, what the tests import is compiled once. Otherwise each process that
# runs them would do it, several at the same time.
compile_tests() {
    compgen -G "$root/tests/__pycache__/*" >/dev/null && return
    local half
    for half in 'tests/[a-h]*/' 'tests/[i-z]*'; do
        # shellcheck disable=SC2086 # it is a pattern
        (cd -- "$root" && exec pytest --collect-only --quiet $half) >/dev/null &
    done
    wait
}
