"""The contracts between stages: five kinds of JSON file, and nothing else.

Import the kinds from here and their parts from the module of the kind; `store` reads and writes them.
"""

from cephalo_cli.artifacts.base import Envelope
from cephalo_cli.artifacts.cluster import Cluster
from cephalo_cli.artifacts.model import Model
from cephalo_cli.artifacts.plan import Plan
from cephalo_cli.artifacts.profile import Profile
from cephalo_cli.artifacts.report import Report

__all__ = ["Cluster", "Envelope", "Model", "Plan", "Profile", "Report"]
