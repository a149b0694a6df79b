//! A wire that breaks: a TCP relay on loopback, which hands all on until one connection has carried so many bytes, ends that
//! one on both sides, and never breaks again.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// How much is handed on at a time.
const PIECE_BYTES: usize = 64 * 1024;

/// A running relay; stops when dropped.
pub(crate) struct Relay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// A relay to a port on loopback, which breaks once: after `up` bytes on their way there, or `down` bytes on their way
    /// back.
    pub(crate) fn start(port: u16, up: u64, down: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, broke) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (client, server) = (client.unwrap(), TcpStream::connect(("127.0.0.1", port)).unwrap());
                for (from, to, limit) in [(&client, &server, up), (&server, &client, down)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let broke = Arc::clone(&broke);
                    // Ends with its connection.
                    std::thread::spawn(move || carry(from, to, limit, &broke));
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }

    /// `127.0.0.1:PORT`
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the accept; where that fails the listener is gone already.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, limit: u64, broke: &AtomicBool) {
    let (mut piece, mut carried) = (vec![0; PIECE_BYTES], 0);
    while let Ok(count @ 1..) = from.read(&mut piece) {
        carried += count as u64;
        if carried > limit && !broke.swap(true, Ordering::SeqCst) {
            break;
        }
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    // Gone already, if it fails.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
