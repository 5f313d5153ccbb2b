"""The radio: Bumble's Controller and LocalLink, completed to the point where Linux is content with them as a BR/EDR
controller, plus faults to order (a link that is lost, a device that is out of range).

What Bumble 0.0.236 lacks or simplifies, and this adds: the commands that Linux sends at power-on, remote version, clock
offset, encryption, page time-out; a reset that ends the links; fragments towards the host.
"""
import asyncio
import logging

from bumble import core, hci
from bumble.controller import Controller
from bumble.hci import LmpFeatureMask as F
from bumble.link import LocalLink

log = logging.getLogger("air")
OK = hci.HCI_ErrorCode.SUCCESS
PAGE_TIMEOUT = hci.HCI_ErrorCode.PAGE_TIMEOUT_ERROR
LINK_LOST = hci.HCI_ErrorCode.CONNECTION_TIMEOUT_ERROR
# So long somebody is called who does not answer.
PAGE_SECONDS = 5.12


class Air(LocalLink):
    def send_acl_data(self, sender, destination, transport, data):
        target = self.find_classic_controller(destination)
        if transport == core.PhysicalTransport.BR_EDR and target and not target.silent and not sender.silent:
            asyncio.get_running_loop().call_soon(target.on_link_acl_data, sender.public_address, transport, data)

    def lose(self, controller):
        """Every link of it ends by supervision time-out, on both sides."""
        for one in list(self.controllers):
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
        self.silent = False  # out of range: hears and says nothing
        self.muted = False
        self.paging = None
        extra = """CREATE_CONNECTION CREATE_CONNECTION_CANCEL ACCEPT_CONNECTION_REQUEST REMOTE_NAME_REQUEST
            READ_REMOTE_SUPPORTED_FEATURES READ_REMOTE_EXTENDED_FEATURES AUTHENTICATION_REQUESTED
            SET_CONNECTION_ENCRYPTION LINK_KEY_REQUEST_REPLY LINK_KEY_REQUEST_NEGATIVE_REPLY IO_CAPABILITY_REQUEST_REPLY
            WRITE_SIMPLE_PAIRING_MODE READ_SIMPLE_PAIRING_MODE WRITE_SCAN_ENABLE WRITE_LOCAL_NAME READ_LOCAL_NAME
            WRITE_CLASS_OF_DEVICE READ_CLASS_OF_DEVICE WRITE_INQUIRY_MODE WRITE_EXTENDED_INQUIRY_RESPONSE
            WRITE_LE_HOST_SUPPORT READ_LOCAL_EXTENDED_FEATURES READ_ENCRYPTION_KEY_SIZE""".split()
        codes = [getattr(hci, f"HCI_{name}_COMMAND", None) for name in extra]
        # Those that Bumble claims and has no handler for are left out.
        self.supported_commands = {
            code for code in set(self.supported_commands) | {code for code in codes if code}
            if hasattr(self, "on_" + hci.HCI_Command.command_name(code).lower())}

    def event(self, event):
        self.send_hci_packet(event)

    def later(self, seconds, call, *arguments):
        return asyncio.get_running_loop().call_later(seconds, call, *arguments)

    def send_hci_packet(self, packet):
        if self.muted:
            return
        # Without secure connections the key of "just works" is of type 4; Linux checks.
        if isinstance(packet, hci.HCI_Link_Key_Notification_Event):
            packet = hci.HCI_Link_Key_Notification_Event(bd_addr=packet.bd_addr, link_key=packet.link_key, key_type=4)
        super().send_hci_packet(packet)

    def on_hci_reset_command(self, command):
        # A host that resets has no links any more; the other side finds out by supervision time-out.
        self.muted = True
        self.link.lose(self)
        self.muted = False
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

    # Calling somebody.

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
            self.event(hci.HCI_Link_Key_Request_Event(bd_addr=connection.peer_address))

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

    # Data.

    def on_link_acl_data(self, sender, transport, data):
        connection = self.classic_connections.get(sender)
        if connection is None:
            log.info("%s: data for a link that is gone", self.name)
            return
        size = self.acl_data_packet_length
        for at in range(0, len(data), size):
            part = data[at:at + size]
            self.event(hci.HCI_AclDataPacket(connection.handle, 1 if at else 2, 0, len(part), part))
