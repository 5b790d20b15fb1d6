#!/bin/bash
# Stands in for a folder's peer.sh: some names answer, others fail in the ways that peers do.
here=$(cd "$(dirname "$0")" && pwd)
case $1 in
good) exec "$PYTHON" "$here/fake_peer.py" --notes "$PEERS/$1.notes" ;;
forked) "$PYTHON" "$here/fake_peer.py" --notes "$PEERS/$1.notes" & wait ;;
stubborn) exec "$PYTHON" "$here/fake_peer.py" --notes "$PEERS/$1.notes" --stubborn ;;
deaf) exec "$PYTHON" "$here/fake_peer.py" --notes "$PEERS/$1.notes" --deaf ;;
broken) echo "no kernel for this CPU" >&2; exit 1 ;;
absent) exec "$here/no/such/program" ;;
*) echo unknown peer >&2; exit 2 ;;
esac
