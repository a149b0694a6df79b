//! A proxy that kills a client once a registry has answered so many of its requests: a crash at a moment that can be named.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use libtest_mimic::Failed;
use rustix::process::{Pid, Signal, kill_process};

const PIECE_BYTES: usize = 64 * 1024;
/// How requests begin, and nothing that they carry here.
const METHODS: [&[u8]; 5] = [b"GET /", b"HEAD /", b"POST /", b"PUT /", b"PATCH /"];

/// A port in front of a server; closed when dropped.
pub(crate) struct Tripwire {
    address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    /// Requests since the last call of [`Tripwire::arm`].
    seen: AtomicUsize,
    /// The request whose answer is the last thing that the victim's wire carries; 0: none.
    limit: AtomicUsize,
    victim: AtomicU32,
    armed: Mutex<bool>,
    ready: Condvar,
    stop: AtomicBool,
}

impl Tripwire {
    pub(crate) fn to(server: String) -> Result<Self, Failed> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if shared.stop.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) else { continue };
                let (Ok(up), Ok(down)) = (client.try_clone(), server.try_clone()) else { continue };
                let (asking, answering) = (Arc::clone(&shared), Arc::clone(&shared));
                std::thread::spawn(move || asking.pass_requests(up, server));
                std::thread::spawn(move || answering.pass_answers(down, client));
            }
        });
        Ok(Self { address, state, thread: Some(thread) })
    }

    /// `127.0.0.1:PORT`
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    /// Counts anew; the next client's wire is held until [`Self::watch`] names it. `limit`: after how many answers it dies; 0: never.
    pub(crate) fn arm(&self, limit: usize) {
        *self.state.armed.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.state.seen.store(0, Ordering::SeqCst);
        self.state.limit.store(limit, Ordering::SeqCst);
    }

    /// Names the client.
    pub(crate) fn watch(&self, pid: u32) {
        self.state.victim.store(pid, Ordering::SeqCst);
        *self.state.armed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.state.ready.notify_all();
    }

    /// The requests since it was armed.
    pub(crate) fn seen(&self) -> usize {
        self.state.seen.load(Ordering::SeqCst)
    }
}

impl State {
    fn wait_for_a_victim(&self) {
        let armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.ready.wait_while(armed, |armed| !*armed && !self.stop.load(Ordering::SeqCst)));
    }

    fn pass_requests(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            self.wait_for_a_victim();
            if METHODS.iter().any(|method| piece[..length].starts_with(method)) {
                self.seen.fetch_add(1, Ordering::SeqCst);
            }
            if to.write_all(&piece[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }

    /// The answer to the last request that is allowed has been made, and so has what it says; the client never hears of it.
    fn pass_answers(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            let limit = self.limit.load(Ordering::SeqCst);
            if limit > 0 && self.seen.load(Ordering::SeqCst) >= limit {
                if let Some(victim) = Pid::from_raw(self.victim.load(Ordering::SeqCst).cast_signed()) {
                    let _ = kill_process(victim, Signal::KILL);
                }
                break;
            }
            if to.write_all(&piece[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }
}

impl Drop for Tripwire {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        self.state.ready.notify_all();
        let woken = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take().filter(|_| woken.is_ok()) {
            let _ = thread.join();
        }
    }
}
