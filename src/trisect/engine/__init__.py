"""Where jobs run: in this process, or in worker processes; one protocol, one worker, one driver's loop."""
