#!/bin/sh
# Certificates of the server and keys of nodes.
#   ./certificates.sh server NAME   on the server; NAME is what nodes connect to, for instance federation.example.org
#   ./certificates.sh node NAME     on each node
set -eu
umask 077

case "${1:-}" in
server)
    name=${2:?the name that nodes connect to}
    mkdir -p certificates
    cd certificates
    # The authority. Its key signs for everybody: keep it offline once the server has its certificate.
    openssl ecparam -name secp384r1 -genkey -noout -out ca.key
    openssl req -x509 -new -key ca.key -sha384 -days 3650 -subj "/CN=fedsoft federation" -out ca.pem \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign"
    # The server. The proxy and the SuperLink share this certificate; the proxy connects to 127.0.0.1.
    openssl ecparam -name secp384r1 -genkey -noout -out server.key
    openssl req -new -key server.key -subj "/CN=$name" -out server.csr
    printf 'subjectAltName=DNS:%s,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\nbasicConstraints=CA:FALSE\n' \
        "$name" > server.ext
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -sha384 -days 365 -extfile server.ext \
        -out server.pem
    rm -f server.csr server.ext
    echo "give certificates/ca.pem to every node"
    ;;
node)
    name=${2:?the name of the node}
    mkdir -p keys
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "$name" -f "keys/$name"
    echo "give keys/$name.pub to the server; keys/$name stays here"
    ;;
*)
    echo "usage: $0 server NAME | node NAME" >&2
    exit 2
    ;;
esac
