#!/bin/sh
# Entrypoint of the stand-in for docker:20-dind: the argument rules of the official image, in words of our own.
#   no argument, or a flag first   dockerd with the default hosts, then the flags
#   dockerd first                  dockerd with exactly these arguments
#   anything else                  docker-entrypoint.sh decides
set -eu

# Prints the subjectAltName list of the server's certificate, comma separated.
names() {
	printf 'DNS:%s,DNS:docker,DNS:localhost,IP:127.0.0.1,IP:::1' "$(hostname)"
	for address in $(hostname -i 2>/dev/null || :); do
		printf ',IP:%s' "${address%%%*}"
	done
	[ -z "${DOCKER_TLS_SAN:-}" ] || printf ',%s' "$DOCKER_TLS_SAN"
}

# issue ROLE EXTENSIONS: a key and a certificate for ROLE, signed by the authority.
issue() {
	home=$DOCKER_TLS_CERTDIR/$1
	[ -s "$home/key.pem" ] || openssl genrsa -out "$home/key.pem" 4096
	openssl req -new -key "$home/key.pem" -subj "/CN=docker:dind $1" -out "$home/csr.pem"
	printf '%s\n' "$2" >"$home/extensions.cnf"
	openssl x509 -req -in "$home/csr.pem" -CA "$DOCKER_TLS_CERTDIR/ca/cert.pem" -CAkey "$DOCKER_TLS_CERTDIR/ca/key.pem" \
		-CAcreateserial -days 825 -extfile "$home/extensions.cnf" -out "$home/cert.pem"
	rm "$home/extensions.cnf"
	cp "$DOCKER_TLS_CERTDIR/ca/cert.pem" "$home/ca.pem"
	openssl verify -CAfile "$home/ca.pem" "$home/cert.pem"
}

# Without the authority's key, a complete server folder is the user's own: it is checked and never overwritten.
prepare_tls() {
	server=$DOCKER_TLS_CERTDIR/server
	if [ ! -s "$DOCKER_TLS_CERTDIR/ca/key.pem" ] && [ -s "$server/ca.pem" ] && [ -s "$server/cert.pem" ] && [ -s "$server/key.pem" ]; then
		openssl verify -CAfile "$server/ca.pem" "$server/cert.pem"
		return
	fi
	mkdir -p "$DOCKER_TLS_CERTDIR/ca" "$server" "$DOCKER_TLS_CERTDIR/client"
	[ -s "$DOCKER_TLS_CERTDIR/ca/key.pem" ] || openssl genrsa -out "$DOCKER_TLS_CERTDIR/ca/key.pem" 4096
	openssl req -new -x509 -key "$DOCKER_TLS_CERTDIR/ca/key.pem" -subj '/CN=docker:dind CA' -days 825 -out "$DOCKER_TLS_CERTDIR/ca/cert.pem"
	issue server "subjectAltName=$(names)"
	issue client 'extendedKeyUsage=clientAuth'
}

# DOCKER_IPTABLES_LEGACY: 1 takes the legacy programs, empty the nft ones; unset takes nft where it works, else legacy where that works.
choose_iptables() {
	legacy=/usr/local/libexec/iptables-legacy
	if [ -z "${DOCKER_IPTABLES_LEGACY+set}" ]; then
		if ! iptables -nL >/dev/null 2>&1; then
			modprobe ip_tables >/dev/null 2>&1 || :
			if "$legacy/iptables" -nL >/dev/null 2>&1; then
				export PATH="$legacy:$PATH"
			fi
		fi
	elif [ -n "$DOCKER_IPTABLES_LEGACY" ]; then
		modprobe ip_tables >/dev/null 2>&1 || :
		export PATH="$legacy:$PATH"
	fi
}

case ${1:-} in
'' | -*)
	if [ $# -gt 0 ] && [ -z "$1" ]; then
		exec docker-entrypoint.sh "$@"
	fi
	if [ -n "${DOCKER_TLS_CERTDIR:-}" ]; then
		prepare_tls >&2
		set -- dockerd --host=unix:///var/run/docker.sock --host=tcp://0.0.0.0:2376 --tlsverify \
			--tlscacert "$DOCKER_TLS_CERTDIR/server/ca.pem" \
			--tlscert "$DOCKER_TLS_CERTDIR/server/cert.pem" \
			--tlskey "$DOCKER_TLS_CERTDIR/server/key.pem" "$@"
	else
		set -- dockerd --host=unix:///var/run/docker.sock --host=tcp://0.0.0.0:2375 "$@"
	fi
	;;
esac

if [ "$1" = dockerd ]; then
	# /run survives a hard stop; a number left there may be anybody's now.
	find /run/ -iname 'docker*.pid' -exec rm -f {} + || :
	choose_iptables
	# {docker-init
	# The workaround of July 2021: dockerd 20.10 under an init that reaps the shims.
	if dockerd --version | grep -qF ' 20.10.'; then
		set -- docker-init -- "$@"
	fi
	# docker-init}
	exec dind "$@"
fi

exec docker-entrypoint.sh "$@"
