#!/bin/sh
# Makes a certificate authority and one TLS directory a name, for tests and trials:
#   make-test-certs.sh DIR NAME...
# DIR/ca.crt and DIR/ca.key are the authority (made once, then kept); each DIR/NAME gets tls.crt,
# tls.key and ca.crt, as cert-manager lays them out. DAYS (default 30) is how long the certificates
# last. Not for production: the authority's key lies beside what it signed.
set -eu

if [ $# -lt 2 ]; then
  echo "usage: $0 DIR NAME..." >&2
  exit 2
fi
dir=$1
shift
days=${DAYS:-30}
umask 077
mkdir -p "$dir"

if [ ! -e "$dir/ca.key" ] || [ ! -e "$dir/ca.crt" ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days "$days" \
    -keyout "$dir/ca.key" -out "$dir/ca.crt" -subj "/CN=Tierkeep test authority" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" \
    2>/dev/null
fi

for name in "$@"; do
  mkdir -p "$dir/$name"
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$dir/$name/tls.key" \
    -subj "/CN=$name" -out "$dir/$name/tls.csr" 2>/dev/null
  cat >"$dir/$name/tls.ext" <<EXT
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
subjectAltName=DNS:$name,DNS:localhost,IP:127.0.0.1,IP:::1
EXT
  openssl x509 -req -in "$dir/$name/tls.csr" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" \
    -CAcreateserial -days "$days" -extfile "$dir/$name/tls.ext" -out "$dir/$name/tls.crt" \
    2>/dev/null
  rm -f "$dir/$name/tls.csr" "$dir/$name/tls.ext"
  cp "$dir/ca.crt" "$dir/$name/ca.crt"
done
