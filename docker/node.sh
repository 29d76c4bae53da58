#!/bin/sh
# One node of a cluster in containers: writes its server.properties, formats its folder if it is new, and runs it.
#
#   ROLE          broker or controller
#   NODE_ID       unique in the cluster
#   CLUSTER_ID    the same for all
#   CONTROLLERS   the voters: id@host:port:directory,... (the same for all)
#   LISTENERS     NAME://host:port,...     ADVERTISED  advertised listeners     RACK  of a broker, if it has one
#   DATA_DIR      where all of it is kept; /data
set -eu
data="${DATA_DIR:-/data}"
properties="$data/server.properties"
servers=$(echo "$CONTROLLERS" | sed 's/[0-9]*@\([^:]*:[0-9]*\):[^,]*/\1/g')
cat > "$properties" <<PROPERTIES
process.roles=$ROLE
node.id=$NODE_ID
listeners=$LISTENERS
advertised.listeners=$ADVERTISED
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=$servers
log.dirs=$data/log
socket.send.buffer.bytes=-1
socket.receive.buffer.bytes=-1
PROPERTIES
if [ "$ROLE" = broker ]; then
    echo "inter.broker.listener.name=PLAINTEXT" >> "$properties"
    if [ -n "${RACK:-}" ]; then echo "broker.rack=$RACK" >> "$properties"; fi
    ottla format --ignore-formatted --cluster-id "$CLUSTER_ID" --config "$properties"
else
    ottla format --ignore-formatted --cluster-id "$CLUSTER_ID" --config "$properties" --initial-controllers "$CONTROLLERS"
fi
exec ottla broker "$properties"
