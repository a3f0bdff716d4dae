"""Where jobs run: in this process, or in worker processes, behind one protocol."""
