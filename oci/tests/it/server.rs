//! A registry that answers whatever a test wants, byte for byte: odd headers, cut bodies, silence. One answer a connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How much of a body is read at a time.
const PIECE_BYTES: u64 = 128 * 1024;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// As long as `Content-Length` says, or shorter where the connection was made to break.
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Bytes of the body, as promised.
    pub(crate) fn length(&self) -> u64 {
        self.header("content-length").map_or(0, |length| length.parse().unwrap())
    }
}

/// The line between a server and its clients.
struct Wire {
    /// How long each [`PIECE_BYTES`] of a body take.
    pace: Duration,
    /// After how many bytes of a request's body the line breaks, if it does.
    breaks: Breaks,
}

type Breaks = Box<dyn Fn(&Request) -> Option<u64> + Send>;

/// A running server; stops when dropped.
pub(crate) struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    /// The connection that is being answered.
    current: Arc<Mutex<Option<TcpStream>>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers each request by `answer`, which writes all of it to the connection.
    pub(crate) fn start(answer: impl Fn(&Request, &mut TcpStream) + Send + 'static) -> Self {
        Self::start_slow(Duration::ZERO, answer)
    }

    /// The same, from the far end of a thin line: each [`PIECE_BYTES`] of a body take it `pace`.
    pub(crate) fn start_slow(pace: Duration, answer: impl Fn(&Request, &mut TcpStream) + Send + 'static) -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").unwrap(), pace, answer)
    }

    /// The same, over a line that breaks where `breaks` says so, after as many bytes of a request's body. What came of it is
    /// answered too, but nobody hears it.
    pub(crate) fn start_breaking(
        breaks: impl Fn(&Request) -> Option<u64> + Send + 'static,
        answer: impl Fn(&Request, &mut TcpStream) + Send + 'static,
    ) -> Self {
        let wire = Wire { pace: Duration::ZERO, breaks: Box::new(breaks) };
        Self::run(TcpListener::bind("127.0.0.1:0").unwrap(), wire, answer)
    }

    /// The same, behind an address of the caller's choice.
    pub(crate) fn listen(
        listener: TcpListener,
        pace: Duration,
        answer: impl Fn(&Request, &mut TcpStream) + Send + 'static,
    ) -> Self {
        Self::run(listener, Wire { pace, breaks: Box::new(|_| None) }, answer)
    }

    fn run(listener: TcpListener, wire: Wire, answer: impl Fn(&Request, &mut TcpStream) + Send + 'static) -> Self {
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let (stop, current) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Option<TcpStream>>>::default());
        let (seen, stopped, answering) = (Arc::clone(&requests), Arc::clone(&stop), Arc::clone(&current));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                *answering.lock().unwrap() = Some(stream.try_clone().unwrap());
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                // What is no HTTP request (a TLS greeting, a closed connection) gets no answer.
                if let Some(request) = read_request(&stream, &wire) {
                    seen.lock().unwrap().push(request.clone());
                    answer(&request, &mut stream);
                }
                answering.lock().unwrap().take();
            }
        });
        Self { address, requests, stop, current, thread: Some(thread) }
    }

    /// `ADDRESS:PORT`
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// `METHOD PATH`, without queries.
    pub(crate) fn calls(&self) -> Vec<String> {
        let call =
            |request: Request| format!("{} {}", request.method, request.path.split('?').next().unwrap_or_default());
        self.requests().into_iter().map(call).collect()
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.requests().into_iter().map(|request| request.path).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Ends an answer that waits for its client.
        if let Some(stream) = self.current.lock().unwrap().take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the accept; where that fails the listener is gone already.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A whole answer with its length.
pub(crate) fn reply(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let length = body.len().to_string();
    head(status, &[headers, &[("Content-Length", &length)]].concat())
        .into_bytes()
        .into_iter()
        .chain(body.iter().copied())
        .collect()
}

/// The head of an answer whose body ends with the connection, unless a header says otherwise.
pub(crate) fn head(status: &str, headers: &[(&str, &str)]) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n")
}

/// Writes as much as the other side takes: a client that has seen enough hangs up.
pub(crate) fn send(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
}

fn read_request(stream: &TcpStream, wire: &Wire) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let (method, path) = line.trim_end().strip_suffix(" HTTP/1.1")?.split_once(' ')?;
    let (method, path) = (method.to_owned(), path.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut request = Request { method, path, headers, body: Vec::new() };
    let breaks = (wire.breaks)(&request);
    let length = request.length().min(breaks.unwrap_or(u64::MAX));
    while (request.body.len() as u64) < length {
        let left = length - request.body.len() as u64;
        let count =
            (&mut reader).take(left.min(PIECE_BYTES)).read_to_end(&mut request.body).ok().filter(|count| *count > 0);
        count?;
        std::thread::sleep(wire.pace);
    }
    if breaks.is_some() {
        // Gone already, if it fails.
        let _ = stream.shutdown(Shutdown::Both);
    }
    Some(request)
}
