"""What actors say to one another, a module for each who is asked.

Importing this package makes every message decodable.
"""

from __future__ import annotations

from actors.messages.archive import ArchiveStatus, DescribeArchive, StoreTrajectory
from actors.messages.balancer import (
    AcquireLease,
    BalancerStatus,
    BeginTurn,
    CloseGate,
    DescribeBalancer,
    JoinGenerator,
    LeaseGranted,
    LeaveGenerator,
    OpenGate,
    ReleaseLease,
    ReleaseOwner,
    TurnEnded,
)
from actors.messages.director import (
    NextReports,
    Report,
    Reports,
    RunEvaluation,
    RunFineTuning,
    RunReinforcement,
    StageDone,
    SyncWeights,
)
from actors.messages.environments import (
    AnswerVerified,
    CallFinished,
    CancelCalls,
    DescribeEnvironment,
    EnvironmentStatus,
    RunCall,
    VerifyAnswer,
)
from actors.messages.generators import (
    DescribeGenerator,
    ForgetOwner,
    ForgetRollout,
    GeneratorStatus,
    SampleTurn,
    TurnSampled,
    UpdateWeights,
)
from actors.messages.learner import (
    BeginStage,
    GatherWeights,
    JoinGroup,
    Learn,
    Learned,
    PublishWeights,
    SaveCheckpoint,
    WeightsPublished,
)
from actors.messages.rollouts import RolloutFinished, RunRollout
from actors.messages.watched import AwaitEnd, Identify, Identity

__all__ = [
    "AcquireLease",
    "AnswerVerified",
    "ArchiveStatus",
    "AwaitEnd",
    "BalancerStatus",
    "BeginStage",
    "BeginTurn",
    "CallFinished",
    "CancelCalls",
    "CloseGate",
    "DescribeArchive",
    "DescribeBalancer",
    "DescribeEnvironment",
    "DescribeGenerator",
    "EnvironmentStatus",
    "ForgetOwner",
    "ForgetRollout",
    "GatherWeights",
    "GeneratorStatus",
    "Identify",
    "Identity",
    "JoinGenerator",
    "JoinGroup",
    "Learn",
    "Learned",
    "LeaseGranted",
    "LeaveGenerator",
    "NextReports",
    "OpenGate",
    "PublishWeights",
    "ReleaseLease",
    "ReleaseOwner",
    "Report",
    "Reports",
    "RolloutFinished",
    "RunCall",
    "RunEvaluation",
    "RunFineTuning",
    "RunReinforcement",
    "RunRollout",
    "SampleTurn",
    "SaveCheckpoint",
    "StageDone",
    "StoreTrajectory",
    "SyncWeights",
    "TurnEnded",
    "TurnSampled",
    "UpdateWeights",
    "VerifyAnswer",
    "WeightsPublished",
]
