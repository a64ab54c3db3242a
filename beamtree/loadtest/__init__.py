"""Load for a service, at times that are fixed before."""

from beamtree.loadtest.open_loop import Reply, Report, arrivals, load

__all__ = ["Reply", "Report", "arrivals", "load"]
