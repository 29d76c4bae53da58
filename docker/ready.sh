#!/bin/bash
# The image's health check: succeeds while the node serves clients, and prints the node's own sentence about it.
# bash opens the connection (/dev/tcp), since each check by Python would start an interpreter.
set -u
exec 3<> "/dev/tcp/127.0.0.1/${METRICS_PORT:-9404}" || exit 1
printf 'GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
mapfile -t lines <&3
((${#lines[@]})) || exit 1
echo "${lines[-1]}"
[[ ${lines[0]} == "HTTP/1.1 200 "* ]]
