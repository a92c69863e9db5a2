"""Control-plane messages: what master, servers, workers and drivers say to each other.

    body.py          Frame.body <-> Message
    membership.py    joining, the route, the end       work.py         a job and its blocks
    rows.py          orders that concern rows          standing_by.py  who has which shard

Each file of the last four begins with who says what: a *call*, written before ">", is answered; a
*note* is not.  No sockets, clocks or threads here.
"""

from snailps.transport.messages.body import (
    JSON_BYTES_MAX,
    Message,
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
from snailps.transport.messages.rows import (
    CloseClock,
    Expire,
    Fence,
    Freeze,
    Load,
    Loaded,
    MakeTables,
    Save,
    Saved,
    SetClock,
    StopSaving,
)
from snailps.transport.messages.standing_by import (
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
from snailps.transport.messages.work import (
    Again,
    CameBack,
    Declare,
    Declared,
    Done,
    Enough,
    Fetch,
    Finished,
    Lease,
    Leased,
    Settled,
    Shutdown,
    Slowest,
    Start,
    Submit,
    Summarise,
    Summary,
    Workers,
)

__all__ = [
    "JSON_BYTES_MAX", "Again", "Alone", "Ask", "BackUp", "Backed", "Bye", "CameBack",
    "CloseClock", "Content", "Declare", "Declared", "Done", "Drain", "DropShard", "Enough",
    "Examine", "Examined", "Expire", "Failed", "Fence", "Fetch", "Finished", "Freeze",
    "HostStandby", "KeepShards", "Lease", "Leased", "Leaving", "Load", "Loaded", "MakeTables",
    "Message", "Ok", "Probe", "Promote", "Register", "Rejoin", "Report", "Save", "Saved",
    "SetClock", "Settled", "Shutdown", "Slowest", "Start", "Stop", "StopSaving", "Submit",
    "Summarise", "Summary", "TakeRoute", "Unbacked", "Welcome", "Workers", "Yield", "Yielded",
    "decode", "encode",
]  # fmt: skip
