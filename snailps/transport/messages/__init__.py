"""Control-plane messages between master, servers, workers and drivers.

    codec.py       Frame.body <-> Message               validation.py   what a field may hold
    membership.py  joining, the route, the end          work.py         a job and its blocks
    tables.py      orders that concern rows             replication.py  who has which shard

Each file of the last four begins with senders and receivers: a *call*, written before ">", is
answered; a *note* is not.  `message` declares that for the programs, and the fields' types what
they may hold.
No sockets, clocks or threads here.
"""

from snailps.transport.messages.codec import (
    JSON_BYTES_MAX,
    Answers,
    Message,
    check_speaker,
    decode,
    encode,
)
from snailps.transport.messages.membership import (
    Ask,
    Bye,
    Content,
    Examine,
    Examined,
    Failed,
    Leaving,
    Ok,
    Probe,
    Register,
    Rejoin,
    Report,
    Stop,
    TakeRoute,
    Welcome,
)
from snailps.transport.messages.replication import (
    Alone,
    Backed,
    BackUp,
    Drain,
    DropShard,
    HostStandby,
    KeepShards,
    Promote,
    Unbacked,
    Yield,
    Yielded,
)
from snailps.transport.messages.tables import (
    CloseClock,
    DropTables,
    Expire,
    Fence,
    Load,
    Loaded,
    MakeTables,
    Save,
    Saved,
    SetClock,
    StopSaving,
)
from snailps.transport.messages.work import (
    Again,
    AskJob,
    Borrow,
    Borrowed,
    CameBack,
    Cancel,
    Declare,
    Declared,
    Done,
    Enough,
    Fetch,
    Finished,
    GiveBack,
    Lease,
    Leased,
    LoadRows,
    ReadFile,
    SaveRows,
    Settled,
    Shutdown,
    Slowest,
    Start,
    Submit,
    Submitted,
    Summarise,
    Summary,
    Workers,
)

__all__ = [
    "JSON_BYTES_MAX", "Again", "Alone", "Answers", "Ask", "AskJob", "BackUp", "Backed", "Borrow",
    "Borrowed", "Bye", "CameBack", "Cancel", "CloseClock", "Content", "Declare", "Declared", "Done",
    "Drain", "DropShard", "DropTables", "Enough",
    "Examine", "Examined", "Expire", "Failed", "Fence", "Fetch",
    "Finished", "GiveBack", "HostStandby", "KeepShards", "Lease", "Leased", "Leaving", "Load",
    "LoadRows", "Loaded", "MakeTables", "Message", "Ok", "Probe", "Promote", "ReadFile", "Register",
    "Rejoin", "Report", "Save", "SaveRows", "Saved", "SetClock", "Settled", "Shutdown", "Slowest",
    "Start", "Stop", "StopSaving", "Submit", "Submitted", "Summarise", "Summary", "TakeRoute",
    "Unbacked", "Welcome", "Workers", "Yield", "Yielded", "check_speaker", "decode", "encode",
]  # fmt: skip
