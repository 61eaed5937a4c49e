"""Hosts of a run in network namespaces of this machine, and what can go wrong with them.

    python -m tools.hosts up 2                # hosts node0 and node1, which stay until `down`
    python -m tools.hosts in 1 COMMAND ...    # run a command on one of them
    python -m tools.hosts down                # remove them, and what a killed tool left
    python -m tools.hosts run cable save 1 fsdp2    # a fault, its phase, host and engine
    python -m tools.hosts campaign 40 [SEED]        # drawn faults, and a restart after each

It needs Linux, root and iproute2. `faults.py` has the table of faults.
"""
