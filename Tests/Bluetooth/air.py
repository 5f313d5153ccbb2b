"""The radio: Bumble's Controller and LocalLink, completed so that Linux accepts them as a controller for BR/EDR and LE,
plus faults on command (a lost link, a device out of range).
Bumble 0.0.236 lacks or simplifies the following, and this adds it: the commands that Linux sends at power-on, inquiry,
remote version, clock offset, encryption, page time-out, comparison of keys, signal strength; a reset that ends the
links; fragments towards the host. For LE: scan responses, the duplicate filter, the filter accept list, cancelling a
connection attempt, links between public addresses.
"""
import asyncio
import collections
import dataclasses
import logging

from bumble import core, hci, ll
from bumble.controller import Controller, LegacyAdvertiser
from bumble.hci import LeFeatureMask as LF
from bumble.hci import LmpFeatureMask as F
from bumble.link import LocalLink

log = logging.getLogger("air")
OK = hci.HCI_ErrorCode.SUCCESS
PAGE_TIMEOUT = hci.HCI_ErrorCode.PAGE_TIMEOUT_ERROR
LINK_LOST = hci.HCI_ErrorCode.CONNECTION_TIMEOUT_ERROR
NO_KEY, OTHER_KEY = hci.HCI_ErrorCode.PIN_OR_KEY_MISSING_ERROR, hci.HCI_ErrorCode.AUTHENTICATION_FAILURE_ERROR
# The page time-out: how long a call to an absent device takes.
PAGE_SECONDS = 5.12


@dataclasses.dataclass
class Advertisement(ll.AdvInd):
    """An advertisement that carries its scan response."""
    scan_data: bytes = b""


class Advertiser(LegacyAdvertiser):
    def send_advertising_data(self):
        controller = self.controller
        if self.enabled and self.advertising_type == 0 and not controller.silent:
            controller.send_advertising_pdu(Advertisement(self.address, self.advertising_data, self.scan_response_data))


class Air(LocalLink):
    def send_acl_data(self, sender, destination, transport, data):
        if transport == core.PhysicalTransport.LE:
            # Bumble uses the sender's random address, but the link may use its public one.
            mine = sender.le_connections.get(destination)
            source = mine.self_address if mine else sender.random_address
            target = self.find_le_controller(destination)
        else:
            source, target = sender.public_address, self.find_classic_controller(destination)
        if target and not target.silent and not sender.silent:
            asyncio.get_running_loop().call_soon(target.on_link_acl_data, source, transport, data)

    def lose(self, controller):
        """Every link of the controller ends by supervision time-out, on both sides."""
        for one in list(self.controllers):
            for address, connection in list(one.le_connections.items()):
                if controller in (one, self.find_le_controller(address)):
                    one.on_le_disconnected(connection, LINK_LOST)
            for address in list(one.classic_connections):
                if controller in (one, self.find_classic_controller(address)):
                    one.on_classic_disconnected(address, LINK_LOST)


class Radio(Controller):
    """A controller on the air."""
    lmp_features = (
        F.LMP_3_SLOT_PACKETS | F.LMP_5_SLOT_PACKETS | F.ENCRYPTION | F.ROLE_SWITCH | F.SNIFF_MODE
        | F.RSSI_WITH_INQUIRY_RESULTS | F.EXTENDED_INQUIRY_RESPONSE | F.SECURE_SIMPLE_PAIRING_CONTROLLER_SUPPORT
        | F.LE_SUPPORTED_CONTROLLER | F.SIMULTANEOUS_LE_AND_BR_EDR_TO_SAME_DEVICE_CAPABLE_CONTROLLER
        | F.EXTENDED_FEATURES)
    lmp_features_max_page_number = 1
    le_features = LF.LE_ENCRYPTION | LF.EXTENDED_REJECT_INDICATION | LF.PERIPHERAL_INITIATED_FEATURE_EXCHANGE
    le_acl_data_packet_length = 251
    total_num_le_acl_data_packets = 8
    supported_max_tx_octets = supported_max_rx_octets = suggested_max_tx_octets = 251
    filter_accept_list_size = 16
    acl_data_packet_length = 1021
    total_num_acl_data_packets = 8

    # Commands without an effect here: what they return after the status.
    QUIET = {
        "READ_VOICE_SETTING": b"\x60\0", "READ_NUMBER_OF_SUPPORTED_IAC": b"\1", "READ_CURRENT_IAC_LAP": b"\1\x33\x8b\x9e",
        "READ_INQUIRY_RESPONSE_TRANSMIT_POWER_LEVEL": b"\0", "READ_PAGE_SCAN_ACTIVITY": b"\0\x08\x12\0",
        "READ_PAGE_SCAN_TYPE": b"\0", "READ_DEFAULT_LINK_POLICY_SETTINGS": b"\0\0", "READ_STORED_LINK_KEY": bytes(4),
        "DELETE_STORED_LINK_KEY": bytes(2), "READ_LOCAL_OOB_DATA": bytes(32),
    }

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.silent = False  # out of range: receives and sends nothing
        self.muted = False
        self.pace = self.next_packet = 0  # seconds that a data packet takes to send, and when the next one is sent
        self.paging = self.inquiry = None
        self.history = collections.deque(maxlen=400)  # its host's packets both ways, except data
        self.told = b""  # sent in inquiry responses
        self.claims = {}  # link keys with which other devices claim to be paired with this one
        self.authenticating = set()  # links whose authentication its host requested
        self.strength = -50  # of its links, in dBm
        self.device_class = 0
        self.le_legacy_advertiser = Advertiser(self)
        self.accept_list = set()
        self.seen = set()  # for the duplicate filter
        extra = """INQUIRY INQUIRY_CANCEL CREATE_CONNECTION CREATE_CONNECTION_CANCEL ACCEPT_CONNECTION_REQUEST REMOTE_NAME_REQUEST
            READ_REMOTE_SUPPORTED_FEATURES READ_REMOTE_EXTENDED_FEATURES AUTHENTICATION_REQUESTED
            SET_CONNECTION_ENCRYPTION LINK_KEY_REQUEST_REPLY LINK_KEY_REQUEST_NEGATIVE_REPLY IO_CAPABILITY_REQUEST_REPLY
            WRITE_SIMPLE_PAIRING_MODE READ_SIMPLE_PAIRING_MODE WRITE_SCAN_ENABLE WRITE_LOCAL_NAME READ_LOCAL_NAME
            WRITE_CLASS_OF_DEVICE READ_CLASS_OF_DEVICE WRITE_INQUIRY_MODE WRITE_EXTENDED_INQUIRY_RESPONSE
            WRITE_LE_HOST_SUPPORT READ_LOCAL_EXTENDED_FEATURES READ_ENCRYPTION_KEY_SIZE""".split()
        codes = [getattr(hci, f"HCI_{name}_COMMAND", None) for name in extra]
        # Commands that Bumble claims but has no handler for are left out.
        self.supported_commands = {
            code for code in set(self.supported_commands) | {code for code in codes if code}
            if hasattr(self, "on_" + hci.HCI_Command.command_name(code).lower())}

    def event(self, event):
        self.send_hci_packet(event)

    def later(self, seconds, call, *arguments):
        return asyncio.get_running_loop().call_later(seconds, call, *arguments)

    def on_hci_packet(self, packet):
        self.note("<", packet)
        super().on_hci_packet(packet)

    def note(self, direction, packet):
        if not isinstance(packet, hci.HCI_AclDataPacket | hci.HCI_Number_Of_Completed_Packets_Event):
            self.history.append((asyncio.get_running_loop().time(), direction, packet))

    def tell_history(self):
        now = asyncio.get_running_loop().time()
        for at, direction, packet in self.history:
            log.warning("%s, %.3f s ago %s %s %s", self.name, now - at, direction, packet.name, bytes(packet).hex())

    def send_hci_packet(self, packet):
        if self.muted:
            return
        self.note(">", packet)
        # Without secure connections a "just works" key has type 4; Linux checks that.
        if isinstance(packet, hci.HCI_Link_Key_Notification_Event):
            packet = hci.HCI_Link_Key_Notification_Event(bd_addr=packet.bd_addr, link_key=packet.link_key, key_type=4)
        # Bumble reports it to both sides; only the side that asked may get it.
        if isinstance(packet, hci.HCI_Authentication_Complete_Event):
            if packet.connection_handle not in self.authenticating:
                return
            self.authenticating.discard(packet.connection_handle)
        super().send_hci_packet(packet)

    def on_hci_acl_data_packet(self, packet):
        now = asyncio.get_running_loop().time()
        self.next_packet = max(now, self.next_packet) + self.pace
        if self.next_packet > now:
            self.later(self.next_packet - now, super().on_hci_acl_data_packet, packet)
        else:
            super().on_hci_acl_data_packet(packet)

    def on_hci_reset_command(self, command):
        # A reset host has no links any more; the other side notices by supervision time-out.
        self.muted = True
        self.link.lose(self)
        self.muted = False
        self.pending_le_connection = None
        self.le_scan_enable = False
        self.accept_list.clear()
        self.claims.clear()
        self.authenticating.clear()
        return super().on_hci_reset_command(command)

    def on_hci_command(self, command):
        name = command.name.removeprefix("HCI_").removesuffix("_COMMAND")
        if isinstance(command, hci.HCI_AsyncCommand):
            log.info("%s: %s not supported", self.name, name)
            self._send_hci_command_status(hci.HCI_ErrorCode.UNKNOWN_HCI_COMMAND_ERROR, command.op_code)
            return None
        tail = self.QUIET.get(name, b"" if name.startswith(("WRITE_", "SET_", "LE_SET_")) else None)
        if tail is None:
            log.info("%s: %s not supported", self.name, name)
            return hci.HCI_StatusReturnParameters(hci.HCI_ErrorCode.UNKNOWN_HCI_COMMAND_ERROR)
        return hci.HCI_GenericReturnParameters(data=b"\0" + tail)

    # Inquiry and discovery.

    def on_hci_write_class_of_device_command(self, command):
        self.device_class = command.class_of_device
        return hci.HCI_StatusReturnParameters(OK)

    def on_hci_write_extended_inquiry_response_command(self, command):
        self.told = bytes(command.extended_inquiry_response)
        return hci.HCI_StatusReturnParameters(OK)

    def on_hci_inquiry_command(self, command):
        self._send_hci_command_status(OK, command.op_code)
        self.later(0.2, self.hear_all)
        self.inquiry = self.later(1.28 * command.inquiry_length, self.end_inquiry)

    def end_inquiry(self):
        self.inquiry = None
        self.event(hci.HCI_Inquiry_Complete_Event(status=OK))

    def on_hci_inquiry_cancel_command(self, command):
        if self.inquiry:
            self.inquiry.cancel()
            self.inquiry = None
        return hci.HCI_StatusReturnParameters(OK)

    def hear_all(self):
        for other in self.link.controllers:
            if other is not self and not other.silent and other.classic_scan_enable & 1:
                self.event(hci.HCI_Extended_Inquiry_Result_Event(
                    num_responses=1, bd_addr=other.public_address, page_scan_repetition_mode=1, reserved=0,
                    class_of_device=other.device_class, clock_offset=0, rssi=-50,
                    extended_inquiry_response=other.told.ljust(240, b"\0")))

    # Paging and connecting.

    def reachable(self, address):
        other = self.link.find_classic_controller(address)
        return other if other and not other.silent and other.classic_scan_enable & 2 else None

    def on_hci_create_connection_command(self, command):
        if self.reachable(command.bd_addr):
            return super().on_hci_create_connection_command(command)
        self._send_hci_command_status(OK, command.op_code)
        self.paging = self.later(PAGE_SECONDS, self.on_classic_connection_complete, command.bd_addr, PAGE_TIMEOUT)
        return None

    def on_hci_create_connection_cancel_command(self, command):
        if self.paging:
            self.paging.cancel()
            self.later(0, self.on_classic_connection_complete, command.bd_addr,
                       hci.HCI_ErrorCode.UNKNOWN_CONNECTION_IDENTIFIER_ERROR)
        return hci.HCI_StatusAndAddressReturnParameters(status=OK, bd_addr=command.bd_addr)

    def on_hci_remote_name_request_command(self, command):
        if self.reachable(command.bd_addr):
            return super().on_hci_remote_name_request_command(command)
        self._send_hci_command_status(OK, command.op_code)
        self.later(PAGE_SECONDS, self.event, hci.HCI_Remote_Name_Request_Complete_Event(
            status=PAGE_TIMEOUT, bd_addr=command.bd_addr, remote_name=bytes(248)))
        return None

    def on_classic_remote_name_response(self, peer, offset, length, fragment):
        self.event(hci.HCI_Remote_Name_Request_Complete_Event(
            status=OK, bd_addr=peer, remote_name=fragment.ljust(248, b"\0")))

    def on_hci_read_remote_version_information_command(self, command):
        self._send_hci_command_status(OK, command.op_code)
        self.event(hci.HCI_Read_Remote_Version_Information_Complete_Event(
            status=OK, connection_handle=command.connection_handle, version=self.lmp_version, manufacturer_name=0xFFFF,
            subversion=0))

    def on_hci_read_clock_offset_command(self, command):
        self._send_hci_command_status(OK, command.op_code)
        self.event(hci.HCI_Read_Clock_Offset_Complete_Event(
            status=OK, connection_handle=command.connection_handle, clock_offset=0))

    def on_hci_authentication_requested_command(self, command):
        # A real controller asks its host for a stored key first.
        connection = self.find_classic_connection_by_handle(command.connection_handle)
        self._send_hci_command_status(
            OK if connection else hci.HCI_ErrorCode.UNKNOWN_CONNECTION_IDENTIFIER_ERROR, command.op_code)
        if connection:
            self.authenticating.add(connection.handle)
            self.event(hci.HCI_Link_Key_Request_Event(bd_addr=connection.peer_address))

    # Bumble trusts any device that has a key. Here the other side is asked for its own key.

    def on_hci_link_key_request_reply_command(self, command):
        self.later(0, self.take_key, command.bd_addr, bytes(command.link_key))
        return hci.HCI_StatusAndAddressReturnParameters(status=OK, bd_addr=command.bd_addr)

    def on_hci_link_key_request_negative_reply_command(self, command):
        if command.bd_addr not in self.claims:
            return super().on_hci_link_key_request_negative_reply_command(command)
        self.later(0, self.take_key, command.bd_addr, None)
        return hci.HCI_StatusAndAddressReturnParameters(status=OK, bd_addr=command.bd_addr)

    def take_key(self, address, key):
        other = self.link.find_classic_controller(address)
        if address in self.claims:
            claimed = self.claims.pop(address)
            mine = other and other.classic_connections.get(self.public_address)
            if mine:
                status = NO_KEY if key is None else OK if key == claimed else OTHER_KEY
                other.event(hci.HCI_Authentication_Complete_Event(status=status, connection_handle=mine.handle))
        elif other and self.public_address in other.classic_connections:
            other.claims[self.public_address] = key
            other.event(hci.HCI_Link_Key_Request_Event(bd_addr=self.public_address))

    def on_hci_read_rssi_command(self, command):
        return hci.HCI_GenericReturnParameters(
            data=b"\0" + command.handle.to_bytes(2, "little") + self.strength.to_bytes(1, "little", signed=True))

    def on_hci_read_transmit_power_level_command(self, command):
        # Bumble does not answer unknown commands.
        told = hci.HCI_GenericReturnParameters(data=b"\0" + command.parameters[:2] + b"\4")
        self.event(hci.HCI_Command_Complete_Event(
            num_hci_command_packets=1, command_opcode=command.op_code, return_parameters=told))

    def on_hci_set_connection_encryption_command(self, command):
        self._send_hci_command_status(OK, command.op_code)
        mine = self.find_classic_connection_by_handle(command.connection_handle)
        other = self.link.find_classic_controller(mine.peer_address)
        for controller, connection in ((self, mine), (other, other.classic_connections[self.public_address])):
            controller.event(hci.HCI_Encryption_Change_Event(
                status=OK, connection_handle=connection.handle, encryption_enabled=command.encryption_enable))

    def on_hci_read_encryption_key_size_command(self, command):
        return hci.HCI_Read_Encryption_Key_Size_ReturnParameters(
            status=OK, connection_handle=command.connection_handle, key_size=16)

    # LE.

    def on_hci_le_read_channel_map_command(self, command):
        return hci.HCI_GenericReturnParameters(
            data=b"\0" + command.connection_handle.to_bytes(2, "little") + b"\xff\xff\xff\xff\x1f")

    def on_hci_le_clear_filter_accept_list_command(self, command):
        self.accept_list.clear()
        return hci.HCI_StatusReturnParameters(OK)

    def on_hci_le_add_device_to_filter_accept_list_command(self, command):
        self.accept_list.add((bytes(command.address), command.address_type & 1))
        return hci.HCI_StatusReturnParameters(OK)

    def on_hci_le_remove_device_from_filter_accept_list_command(self, command):
        self.accept_list.discard((bytes(command.address), command.address_type & 1))
        return hci.HCI_StatusReturnParameters(OK)

    def on_hci_le_set_scan_enable_command(self, command):
        self.seen.clear()
        return super().on_hci_le_set_scan_enable_command(command)

    def on_hci_le_create_connection_cancel_command(self, command):
        if not self.pending_le_connection:
            return hci.HCI_StatusReturnParameters(hci.HCI_ErrorCode.COMMAND_DISALLOWED_ERROR)
        pending, self.pending_le_connection = self.pending_le_connection, None
        self.later(0, self.event, hci.HCI_LE_Connection_Complete_Event(
            status=hci.HCI_ErrorCode.UNKNOWN_CONNECTION_IDENTIFIER_ERROR, connection_handle=0, role=0, peer_address_type=0,
            peer_address=pending.peer_address, connection_interval=0, peripheral_latency=0, supervision_timeout=0,
            central_clock_accuracy=0))
        return hci.HCI_StatusReturnParameters(OK)

    def on_advertising_pdu(self, pdu):
        if self.silent:
            return
        address, kind = pdu.advertiser_address, int(not pdu.advertiser_address.is_public)
        listed = (bytes(address), kind) in self.accept_list
        if self.le_scan_enable and (listed or not self.le_scanning_filter_policy & 1):
            reports = [(0, pdu.data)]
            if self.le_scan_type == 1 and pdu.scan_data:
                reports.append((4, pdu.scan_data))
            for what, data in reports:
                key = (bytes(address), kind, what)
                if self.filter_duplicates and key in self.seen:
                    continue
                self.seen.add(key)
                report = hci.HCI_LE_Advertising_Report_Event.Report(
                    event_type=what, address_type=kind, address=address, data=data, rssi=-50)
                self.event(hci.HCI_LE_Advertising_Report_Event([report]))
        want = self.pending_le_connection
        if want and (listed if want.initiator_filter_policy else want.peer_address == address):
            want.peer_address = address
            self.create_le_connection(address)

    # Data.

    def on_link_acl_data(self, sender, transport, data):
        is_le = transport == core.PhysicalTransport.LE
        connection = (self.le_connections if is_le else self.classic_connections).get(sender)
        if connection is None:
            log.info("%s: data for a link that is gone", self.name)
            return
        size = self.le_acl_data_packet_length if is_le else self.acl_data_packet_length
        for at in range(0, len(data), size):
            part = data[at:at + size]
            self.event(hci.HCI_AclDataPacket(connection.handle, 1 if at else 2, 0, len(part), part))
