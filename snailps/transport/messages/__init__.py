"""Control-plane messages between master, servers, workers and drivers.

    codec.py       Frame.body <-> Message               validation.py   what a field may hold
    membership.py  joining, the route, the end          work.py         a job and its blocks
    tables.py      orders that concern rows             replication.py  who has which shard

Each file of the last four begins with senders and receivers: a *call*, written before ">", is
answered; a *note* is not.  `message` declares that for the programs, and the fields' types what
they may hold.
No sockets, clocks or threads here.
"""

from snailps.transport.messages.codec import JSON_BYTES_MAX as JSON_BYTES_MAX
from snailps.transport.messages.codec import Answers as Answers
from snailps.transport.messages.codec import Message as Message
from snailps.transport.messages.codec import check_speaker as check_speaker
from snailps.transport.messages.codec import decode as decode
from snailps.transport.messages.codec import encode as encode
from snailps.transport.messages.membership import *
from snailps.transport.messages.replication import *
from snailps.transport.messages.tables import *
from snailps.transport.messages.work import *
