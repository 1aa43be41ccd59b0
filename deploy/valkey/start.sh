#!/bin/sh
# Starts Valkey with the users of users.acl. The user laneway gets $LANEWAY_PASSWORD; only its hash
# is written. Further arguments are settings of the server.
set -eu
: "${LANEWAY_PASSWORD:?set LANEWAY_PASSWORD}"
folder=$(dirname "$0")
users=${LANEWAY_ACL_FILE:-/tmp/users.acl}
hash=$(printf %s "$LANEWAY_PASSWORD" | sha256sum | cut -d ' ' -f 1)
unset LANEWAY_PASSWORD
umask 077
sed -e '/^#/d' -e '/^$/d' -e "s/PASSWORD_SHA256/$hash/" "$folder/users.acl" > "$users"
exec valkey-server "$folder/valkey.conf" --aclfile "$users" "$@"
