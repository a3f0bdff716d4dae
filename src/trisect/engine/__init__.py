"""Where jobs run: in this process, in worker processes, or on a Ray cluster, behind one protocol."""
