//! A wire: passes connections on to a server and counts the bytes of each direction. Reads nothing of what it passes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result};

/// How much is passed at a time.
const PIECE_BYTES: usize = 64 * 1024;

/// A port of its own in front of a server; closed when dropped.
#[derive(Debug)]
pub struct Wire {
    address: SocketAddr,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    up: AtomicU64,
    down: AtomicU64,
    stop: AtomicBool,
}

impl Wire {
    /// A wire to `server` (`HOST:PORT`). Error: no port is free.
    pub fn to(server: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("open a wire")?;
        let address = listener.local_addr().context("open a wire")?;
        let counts = Arc::new(Counts::default());
        let counting = Arc::clone(&counts);
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if counting.stop.load(Ordering::SeqCst) {
                    return;
                }
                // A connection that cannot be passed on is closed, as a server that is down would.
                if let Ok(client) = client {
                    let _ = connect(client, &server, &counting);
                }
            }
        });
        Ok(Self { address, counts, thread: Some(thread) })
    }

    /// `127.0.0.1:PORT`
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Bytes to and from the server since the last call.
    pub fn bytes(&self) -> (u64, u64) {
        (self.counts.up.swap(0, Ordering::SeqCst), self.counts.down.swap(0, Ordering::SeqCst))
    }
}

fn connect(client: TcpStream, server: &str, counts: &Arc<Counts>) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    let (from_client, from_server) = (client.try_clone()?, server.try_clone()?);
    let (up, down) = (Arc::clone(counts), Arc::clone(counts));
    std::thread::spawn(move || pass(from_client, server, &up.up));
    std::thread::spawn(move || pass(from_server, client, &down.down));
    Ok(())
}

/// Passes bytes on until either side closes, then tells the other.
fn pass(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64) {
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        count.fetch_add(length as u64, Ordering::SeqCst);
        if to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    // Closed already, if it fails.
    let _ = to.shutdown(Shutdown::Write);
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.counts.stop.store(true, Ordering::SeqCst);
        // Wakes the thread, which then sees that it shall stop.
        let woken = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take().filter(|_| woken.is_ok()) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_counted_in_each_direction() {
        let server = TcpListener::bind("127.0.0.1:0").expect("listen");
        let wire = Wire::to(server.local_addr().expect("an address").to_string()).expect("open a wire");
        let mut client = TcpStream::connect(wire.host()).expect("connect");
        let (mut served, _) = server.accept().expect("accept");
        client.write_all(b"up").expect("write");
        let mut two = [0; 2];
        served.read_exact(&mut two).expect("read");
        served.write_all(b"down").expect("write");
        let mut four = [0; 4];
        client.read_exact(&mut four).expect("read");
        assert_eq!((&two, &four, wire.bytes()), (b"up", b"down", (2, 4)));
        assert_eq!(wire.bytes(), (0, 0));
    }
}
