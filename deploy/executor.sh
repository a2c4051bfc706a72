#!/bin/sh
# Starts an executor in a pod of Spark on Kubernetes, which calls this file with the word `executor`.
# Spark gives the settings in the environment (BasicExecutorFeatureStep of Spark's module for
# Kubernetes); Java's options are SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …
set -eu

if [ "${1-}" != executor ]; then
    exec ebbtide "$@"
fi

home=$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
export SPARK_HOME="$home"
set -- \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
set -- org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend "$@"
set -- "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "$home/conf:$home/jars/*:${SPARK_EXTRA_CLASSPATH-}" "$@"

# The options come before all else, in their order.
number=0
options=
while eval "[ -n \"\${SPARK_JAVA_OPT_$number+set}\" ]"; do
    options="$options \"\$SPARK_JAVA_OPT_$number\""
    number=$((number + 1))
done
eval "set -- $options \"\$@\""
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@"
