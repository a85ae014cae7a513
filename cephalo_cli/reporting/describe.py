"""What one artifact says, as plain data: a few sheets and lists of facts for each kind."""

from cephalo_cli.artifacts import Cluster, Envelope, Model, Plan, Profile, Report
from cephalo_cli.reporting.describe_inputs import describe_cluster, describe_model, describe_profile
from cephalo_cli.reporting.describe_plan import describe_plan
from cephalo_cli.reporting.describe_report import describe_report
from cephalo_cli.reporting.sheet import Part

__all__ = ["describe"]


def describe(artifact: Envelope) -> list[Part]:
    """Say what an artifact says; every number is SI.

    Raises:
        AssertionError: The artifact is of a kind this program does not know.
    """
    if isinstance(artifact, Cluster):
        return describe_cluster(artifact)
    if isinstance(artifact, Model):
        return describe_model(artifact)
    if isinstance(artifact, Profile):
        return describe_profile(artifact)
    if isinstance(artifact, Plan):
        return describe_plan(artifact)
    if isinstance(artifact, Report):
        return describe_report(artifact)
    raise AssertionError(f"no tables for kind {artifact.kind!r}")
