"""The rooms: a route (or a few), its far end, and the faults that are done there. They run in parallel."""

from rooms.absent import CloseRoom, DiscardRoom
from rooms.admission import AdmissionRoom, QueueRoom, ReplaceRoom
from rooms.limits import LimitRoom
from rooms.lines import LineRoom, ModemRoom, ServerRoom, SocketRoom
from rooms.local import TerminalRoom, UnixRoom
from rooms.packets import PacketDropRoom, PacketsRoom
from rooms.programs import ProgramRoom, SharedProgramRoom
from rooms.proxy import ProxyRoom
from rooms.reload import ChangedRoom, ReloadRoom
from rooms.slow import DropRoom, SlowRoom, UnixSlowRoom
from rooms.vanished import VanishedRoom
from rooms.writers import FirstWriterRoom, IdleWriterRoom, NewestWriterRoom

ALL = [
    LineRoom, ServerRoom, SocketRoom, ModemRoom,
    UnixRoom, TerminalRoom,
    SlowRoom, UnixSlowRoom, DropRoom,
    DiscardRoom, CloseRoom,
    NewestWriterRoom, FirstWriterRoom, IdleWriterRoom, PacketsRoom, PacketDropRoom,
    ProxyRoom, ProgramRoom, SharedProgramRoom,
    AdmissionRoom, QueueRoom, ReplaceRoom, VanishedRoom,
    ReloadRoom, ChangedRoom, LimitRoom,
]
