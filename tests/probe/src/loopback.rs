//! Brings up `lo` in a fresh network namespace by one rtnetlink message (rtnetlink(7)), since an image may lack `ip`.

use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket};
use std::os::fd::AsRawFd;

/// `lo` is the first interface of every network namespace (net/core/dev.c gives it index 1).
const LOOPBACK_INDEX: u32 = 1;
const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST_ACK: u16 = 0x1 | 0x4;
const NLMSG_ERROR: u16 = 2;
const IFF_UP: u32 = 1;
/// struct nlmsghdr and struct ifinfomsg, 16 bytes each.
const MESSAGE_BYTES: u32 = 32;

pub(crate) fn up() -> Result<(), String> {
    let fault = |errno: nix::Error| format!("bring up lo: {errno}");
    let netlink = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)
        .map_err(fault)?;
    sendto(netlink.as_raw_fd(), &request(), &NetlinkAddr::new(0, 0), MsgFlags::empty()).map_err(fault)?;
    let mut reply = [0; 256];
    let length = recv(netlink.as_raw_fd(), &mut reply, MsgFlags::empty()).map_err(fault)?;
    // The acknowledgement is an nlmsgerr: header of 16 bytes, then the negated errno, 0 for success.
    let kind = reply.get(4..6).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    let code = reply[..length].get(16..20).map(|bytes| i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(fault(nix::Error::from_raw(-code))),
        (kind, _) => Err(format!("bring up lo: expected an acknowledgement, found message type {kind:?}")),
    }
}

fn request() -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(MESSAGE_BYTES.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend([0; 8]); // sequence number, port
    message.extend([0; 4]); // family, padding, device type
    message.extend(LOOPBACK_INDEX.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes()); // flags
    message.extend(IFF_UP.to_ne_bytes()); // which flags change
    message
}
