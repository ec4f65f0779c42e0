"""`make lab-cluster`: a control plane to try things on, until Ctrl-C."""

from __future__ import annotations

import signal
import sys

from tests.labs.apt import CannotStart
from tests.labs.controlplane.cluster import GATES, Cluster


def main() -> int:
    wanted = {signal.SIGINT, signal.SIGTERM}
    print("starting the control plane; ten minutes more when it has to be built …", file=sys.stderr)
    try:
        with Cluster(gates=GATES) as cluster:
            # Blocked from here on, so that the end is an orderly one whenever they come.
            signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
            print(f"export KUBECONFIG={cluster.kubeconfig}", flush=True)
            print("it goes away with Ctrl-C", file=sys.stderr)
            signal.sigwait(wanted)
    except CannotStart as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # while it started
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
