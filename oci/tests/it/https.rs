//! Registries over https for trials: a certificate authority of a trial's own, and a front that ends TLS before a [`Server`].
//! Certificates are made by openssl.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

use crate::server::Server;

/// The first byte of a TLS greeting: a record of type handshake (RFC 8446, section 5.1).
pub(crate) const HANDSHAKE: u8 = 22;
/// How openssl is to make keys.
const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
/// What openssl needs to know of an authority.
const CONFIG: &str = "[ca]
default_ca = it
[it]
certificate = ca.pem
private_key = ca.key
database = issued
new_certs_dir = .
rand_serial = yes
unique_subject = no
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
";

/// When a certificate starts and ends to be valid.
pub(crate) type Life = (&'static str, &'static str);
pub(crate) const VALID: Life = ("20200101000000Z", "20491231235959Z");
pub(crate) const PAST: Life = ("20200101000000Z", "20210101000000Z");
pub(crate) const FUTURE: Life = ("20490101000000Z", "20491231235959Z");

const HEAD_BYTES_MAX: usize = 64 * 1024;

/// A certificate authority that nobody trusts yet.
pub(crate) struct Authority {
    dir: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let authority = Self { dir: tempfile::tempdir().unwrap() };
        let path = |name| authority.dir.path().join(name);
        std::fs::write(path("ca.conf"), CONFIG).unwrap();
        std::fs::write(path("issued"), "").unwrap();
        // Each has a name of its own: of two by one name, the wrong one would be tried.
        let name = authority.dir.path().file_name().unwrap().display();
        authority.openssl(&format!("req -x509 {KEY} -keyout ca.key -out ca.pem -subj /CN={name}"));
        authority
    }

    /// Its own certificate, in PEM.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// A server's configuration with a certificate for `names` (`DNS:x,IP:y`).
    fn issue(&self, names: &str, (start, end): Life) -> Arc<ServerConfig> {
        self.openssl(&format!(
            "req -new {KEY} -keyout key.pem -out request.pem -subj /CN=it -addext subjectAltName={names}"
        ));
        self.openssl(&format!(
            "ca -batch -notext -config ca.conf -startdate {start} -enddate {end} -in request.pem -out certificate.pem"
        ));
        self.serve("certificate.pem", "key.pem")
    }

    /// A server's configuration with the authority's own certificate, as people make it who sign for themselves; `extension`
    /// is added to it (`basicConstraints=CA:FALSE`).
    pub(crate) fn itself(extension: &str) -> (Self, Arc<ServerConfig>) {
        let authority = Self { dir: tempfile::tempdir().unwrap() };
        let names = "-addext subjectAltName=DNS:registry.test,IP:127.0.0.1";
        authority
            .openssl(&format!("req -x509 {KEY} -keyout ca.key -out ca.pem -subj /CN=it {names} -addext {extension}"));
        let config = authority.serve("ca.pem", "ca.key");
        (authority, config)
    }

    fn serve(&self, certificate: &str, key: &str) -> Arc<ServerConfig> {
        let path = |name| self.dir.path().join(name);
        let certificate = CertificateDer::from_pem_file(path(certificate)).unwrap();
        let key = PrivateKeyDer::from_pem_file(path(key)).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Arc::new(builder.with_single_cert(vec![certificate], key).unwrap())
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(self.dir.path()).output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// What ends TLS before a server, and passes plain http through; stops when dropped.
pub(crate) struct Front {
    address: SocketAddr,
    greetings: Arc<Mutex<Vec<u8>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    /// Before `server`, with a certificate of `authority` for `names`.
    pub(crate) fn start(server: &Server, authority: &Authority, names: &str, life: Life) -> Self {
        Self::with(server, authority.issue(names, life))
    }

    /// Before `server`, with that configuration.
    pub(crate) fn with(server: &Server, config: Arc<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let behind = server.host();
        let (greetings, stop) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<AtomicBool>::default());
        let (heard, stopped) = (Arc::clone(&greetings), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let mut first = [0];
                if stream.peek(&mut first).is_ok_and(|count| count == 1) {
                    heard.lock().unwrap().push(first[0]);
                    // A client that does not trust us hangs up.
                    let _ = if first == [HANDSHAKE] {
                        end_tls(stream, Arc::clone(&config), &behind)
                    } else {
                        pass_on(&mut &stream, &behind)
                    };
                }
            }
        });
        Self { address, greetings, stop, thread: Some(thread) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The first byte of each connection.
    pub(crate) fn greetings(&self) -> Vec<u8> {
        self.greetings.lock().unwrap().clone()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the accept; where that fails the listener is gone already.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn end_tls(stream: TcpStream, config: Arc<ServerConfig>, behind: &str) -> std::io::Result<()> {
    let mut client = StreamOwned::new(ServerConnection::new(config).map_err(std::io::Error::other)?, stream);
    pass_on(&mut client, behind)?;
    client.conn.send_close_notify();
    client.flush()?;
    client.sock.shutdown(Shutdown::Both)
}

/// One request and its answer, which ends with the connection.
fn pass_on(client: &mut (impl Read + Write), behind: &str) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && request.len() < HEAD_BYTES_MAX {
        client.read_exact(&mut byte)?;
        request.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&request).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    client.take(length.unwrap_or(0)).read_to_end(&mut request)?;
    let mut server = TcpStream::connect(behind)?;
    server.write_all(&request)?;
    std::io::copy(&mut server, client).map(drop)
}
