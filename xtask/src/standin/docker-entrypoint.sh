#!/bin/sh
# The client's entrypoint of the stand-in for docker:20-dind: docker's subcommands and flags reach docker, with a DOCKER_HOST
# where none is given; all else runs as it stands.
set -eu

if [ $# -eq 0 ]; then
	set -- sh
fi

case $1 in
-*) set -- docker "$@" ;;
*)
	if docker help "$1" >/dev/null 2>&1; then
		set -- docker "$@"
	fi
	;;
esac

client=${DOCKER_TLS_CERTDIR:+$DOCKER_TLS_CERTDIR/client}
certificates=
if [ -n "$client" ] && [ -s "$client/ca.pem" ] && [ -s "$client/cert.pem" ] && [ -s "$client/key.pem" ]; then
	certificates=$client
fi

# Without a socket here, the daemon is the service named docker.
if [ -z "${DOCKER_HOST:-}" ] && [ ! -S /var/run/docker.sock ]; then
	if [ -n "$certificates" ] || [ -n "${DOCKER_TLS_VERIFY:-}" ]; then
		export DOCKER_HOST=tcp://docker:2376
	else
		export DOCKER_HOST=tcp://docker:2375
	fi
fi

case ${DOCKER_HOST:-} in
tcp:*)
	if [ -n "$certificates" ] && [ -z "${DOCKER_TLS_VERIFY:-}" ] && [ -z "${DOCKER_CERT_PATH:-}" ]; then
		export DOCKER_TLS_VERIFY=1 DOCKER_CERT_PATH="$certificates"
	fi
	;;
esac

exec "$@"
