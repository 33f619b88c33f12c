#!/usr/bin/env bash
# Two workers on one machine with a link of a given rate between them: two network namespaces, joined by a pair of virtual
# interfaces whose queues are shaped by `tbf`. The words behind the rate are run once in each, by MPICH:
#
#   sudo bash benches/shaped_link.sh 400mbit plimsoll run digits
#
# Prints what the command prints, then the bytes that the first worker sent. Needs root, `ip`, `tc` and `mpirun.mpich`.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: bash benches/shaped_link.sh RATE COMMAND..., such as 400mbit plimsoll run digits" >&2
  exit 2
fi
rate="$1"
shift
for tool in ip tc mpirun.mpich; do
  command -v "$tool" > /dev/null || { echo "shaped_link: skipped, there is no $tool" >&2; exit 0; }
done
first="plimsoll-$$-0" second="plimsoll-$$-1" link=plimsoll
clear_away() { ip netns del "$first" 2> /dev/null || true; ip netns del "$second" 2> /dev/null || true; }
trap clear_away EXIT
ip netns add "$first" 2> /dev/null || { echo "shaped_link: skipped, network namespaces are not allowed here" >&2; exit 0; }
ip netns add "$second"
ip link add "$link" netns "$first" type veth peer name "$link" netns "$second"
number=0
for space in "$first" "$second"; do
  number=$((number + 1))
  ip -n "$space" addr add "10.9.0.$number/24" dev "$link"
  ip -n "$space" link set lo up
  # As networks of clusters are set: headers take less than 1 % of the bytes then, and 4.5 % at the usual 1500.
  ip -n "$space" link set "$link" mtu 9000
  ip -n "$space" link set "$link" up
  ip netns exec "$space" tc qdisc add dev "$link" root tbf rate "$rate" burst 64kb latency 50ms
done
for space in "$first" "$second"; do
  until ip -n "$space" link show "$link" | grep -q "state UP"; do sleep 0.1; done
done
# Without these the library would use the memory that both share, or each namespace's own loopback.
export UCX_TLS=tcp,self UCX_NET_DEVICES="$link" MPIR_CVAR_NOLOCAL=1
mpirun.mpich -launcher fork -n 1 ip netns exec "$first" "$@" : -n 1 ip netns exec "$second" "$@"
sent="$(ip -n "$first" -s link show "$link" | awk '/TX:/ { getline; print $1 }')"
echo "sent by the first worker: $sent bytes"
