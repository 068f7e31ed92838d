#!/usr/bin/env bash
# Certificates to try a federation with, valid for 30 days:  bash certificates.sh FOLDER [NAME-OR-ADDRESS ...]
# For real clients use those of your own authority: whoever has ca.key can pretend to be the server.
set -euo pipefail
folder=${1:?usage: certificates.sh FOLDER [NAME-OR-ADDRESS ...]}
shift
names="DNS:localhost,IP:127.0.0.1"
for name in "$@"; do
    if [[ $name =~ ^[0-9.]+$|: ]]; then names+=",IP:$name"; else names+=",DNS:$name"; fi
done
mkdir -p "$folder"
cd "$folder"
umask 077
key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
openssl req -x509 "${key[@]}" -days 30 -keyout ca.key -out ca.pem -subj "/CN=authority for trials" 2>/dev/null
openssl req "${key[@]}" -keyout server.key -out server.csr -subj "/CN=superlink" 2>/dev/null
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -out server.pem \
    -extfile <(echo "subjectAltName=$names") 2>/dev/null
rm server.csr ca.srl
echo "$PWD: ca.pem for everybody; server.pem and server.key for the SuperLink, for $names"
