#!/bin/sh
# Publish three orders, lease one, and settle it: shop.sh URL [TOPIC]
set -eu
url=${1:-http://localhost:7878}
topic=${2:-orders}

call() { # call METHOD PATH JSON
    curl --silent --show-error --fail-with-body --request "$1" "$url$2" --data "$3" \
        --header 'content-type: application/json' \
        ${LANEWAY_TOKEN:+--header "authorization: Bearer $LANEWAY_TOKEN"}
    echo
}

for order in 1 2 3; do
    call POST "/v1/topics/$topic/messages" "{\"body\": {\"order\": $order}, \"id\": \"order-$order\"}"
done

delivery=$(call POST /v1/lease "{\"n\": 1, \"wait\": 10, \"topics\": [\"$topic\"]}")
echo "$delivery"
receipt=$(echo "$delivery" | sed 's/.*"receipt":"\([^"]*\)".*/\1/')
call POST /v1/settle "[{\"receipt\": \"$receipt\", \"action\": \"ack\"}]"
