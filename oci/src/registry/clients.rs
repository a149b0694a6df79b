//! The HTTP clients below the transport: whose certificates they trust, which proxies they use, which addresses they refuse.
//! Each is made when first needed, so that nobody pays for certificates that no request needs. Never follows a redirect, and
//! never takes loopback through a proxy: what listens there is this machine's, and a proxy would look at its own.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Certificate, ClientBuilder, Url};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, RootCertStore};

use super::Options;
use super::answer;
use super::auth;
use super::endpoint;
use crate::error::{CA_AS_SERVER, Error, Result};
use crate::timestamp::Timestamp;

/// Largest file of CA certificates that is read: several times what a system trusts.
const CA_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// How many of the names in a certificate an error tells.
const NAMES_SHOWN_MAX: usize = 5;

/// The clients of one [`Client`](super::Client).
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// Plain http on loopback: no proxy, and no CA certificates, which a small machine may lack.
    plain_loopback: OnceLock<reqwest::Client>,
    /// https on loopback: no proxy.
    loopback: OnceLock<reqwest::Client>,
    /// All else: the environment's proxies (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`).
    outside: OnceLock<reqwest::Client>,
    /// As `outside`, but for hosts that a registry chose: no name that leads to an internal address.
    chosen: OnceLock<reqwest::Client>,
}

impl Clients {
    /// The client for a URL that we were given, or sent to.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Document`] for a file of [`Options::ca`]; [`Error::Untrusted`] where there is no CA
    /// certificate at all.
    pub(super) fn of(&self, url: &Url, options: &Options) -> Result<&reqwest::Client> {
        let make = || base(options);
        match (endpoint::is_loopback(url), url.scheme()) {
            (true, "http") => get(&self.plain_loopback, url, || Ok(make().no_proxy().tls_certs_only([]))),
            (true, _) => get(&self.loopback, url, || Ok(make().no_proxy().tls_certs_merge(certificates(&options.ca)?))),
            (false, _) => get(&self.outside, url, || Ok(make().tls_certs_merge(certificates(&options.ca)?))),
        }
    }

    /// The client for a token server that `registry` names. It refuses names of internal addresses at the very look-up whose
    /// addresses it then connects to, so that no second answer can differ. Behind a proxy it is the proxy that looks up, and
    /// its network that is reached.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(super) fn of_realm(&self, realm: &Url, registry: &Url, options: &Options) -> Result<&reqwest::Client> {
        if endpoint::is_loopback(realm) || realm.host_str() == registry.host_str() {
            return self.of(realm, options);
        }
        let make = || Ok(base(options).dns_resolver(Outward).tls_certs_merge(certificates(&options.ca)?));
        get(&self.chosen, realm, make)
    }
}

fn get<'a>(
    place: &'a OnceLock<reqwest::Client>,
    url: &Url,
    make: impl FnOnce() -> Result<ClientBuilder>,
) -> Result<&'a reqwest::Client> {
    if let Some(client) = place.get() {
        return Ok(client);
    }
    // Another part of the program may have chosen a provider before us, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = make()?
        .build()
        .map_err(|error| Error::Untrusted { endpoint: endpoint::origin(url), reason: answer::innermost(&error) })?;
    Ok(place.get_or_init(|| client))
}

fn base(options: &Options) -> ClientBuilder {
    reqwest::Client::builder()
        .user_agent(&options.user_agent)
        .connect_timeout(options.connect_timeout)
        .redirect(reqwest::redirect::Policy::none())
}

/// All certificates of PEM files (RFC 7468, section 5).
fn certificates(files: &[PathBuf]) -> Result<Vec<Certificate>> {
    let mut found = Vec::new();
    for file in files {
        for der in read(file)? {
            let certificate = Certificate::from_der(&der);
            found.push(certificate.map_err(|error| Error::document(ca(file), answer::innermost(&error)))?);
        }
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(Error::io(format!("open {}", ca(path))))?;
    file.take(CA_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(Error::io(format!("read {}", ca(path))))?;
    if bytes.len() as u64 > CA_BYTES_MAX {
        return Err(Error::TooLarge { subject: ca(path), limit: CA_BYTES_MAX });
    }
    let wrong = |found: String| Error::document(ca(path), format!("expected certificates in PEM, found {found}"));
    let certificates = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| wrong(error.to_string()))?;
    if certificates.is_empty() {
        return Err(wrong("none".to_owned()));
    }
    let mut store = RootCertStore::empty();
    for (at, certificate) in certificates.iter().enumerate() {
        store
            .add(certificate.clone())
            .map_err(|error| wrong(format!("at {} of {}: {error}", at + 1, certificates.len())))?;
    }
    Ok(certificates)
}

/// Why a certificate is not trusted, in words; what has none here, as the TLS library says it.
pub(super) fn distrust(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(problem) = error else { return error.to_string() };
    let date = |time: &UnixTime| Timestamp::from_epoch(time.as_secs()).map_or("?".to_owned(), |time| time.to_string());
    match problem {
        CertificateError::UnknownIssuer => {
            "expected a certificate of a CA that is trusted here, found one of another".to_owned()
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("expected a certificate that is valid today, found one that ended at {}", date(not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("expected a certificate that is valid today, found one that starts at {}", date(not_before))
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            // Each is written `DnsName("a.example")` or `IpAddress(192.0.2.1)`.
            let bare = |name: &String| name.split(['(', ')', '"']).rfind(|part| !part.is_empty()).map(str::to_owned);
            let names: Vec<String> = presented.iter().filter_map(bare).take(NAMES_SHOWN_MAX).collect();
            let found = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
            format!("expected a certificate for {}, found one for {found}", expected.to_str())
        }
        // The verifier's own kinds of error come as text only.
        CertificateError::Other(problem) => match problem.0.to_string().as_str() {
            "CaUsedAsEndEntity" => CA_AS_SERVER.to_owned(),
            other => format!("expected a valid certificate, found one that fails its check: {other}"),
        },
        _ => error.to_string(),
    }
}

fn ca(path: &Path) -> String {
    format!("CA certificates {}", path.display())
}

/// Looks names up as the system does, and refuses those that lead to an address which only this machine, or its cloud, has a
/// reason to speak to.
struct Outward;

impl Resolve for Outward {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let addresses = tokio::task::spawn_blocking(move || (host.as_str(), 0).to_socket_addrs()).await??;
            let addresses: Vec<_> = addresses.collect();
            match addresses.iter().find(|address| auth::is_internal_address(address.ip())) {
                Some(found) => Err(Internal { name: name.as_str().to_owned(), address: found.ip().to_string() }.into()),
                None => Ok(Box::new(addresses.into_iter()) as Addrs),
            }
        })
    }
}

/// A name that a registry chose leads to an internal address.
#[derive(Debug)]
pub(super) struct Internal {
    name: String,
    address: String,
}

impl fmt::Display for Internal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, address } = self;
        write!(f, "expected a token server, found that {name} is the link-local or metadata address {address}")
    }
}

impl std::error::Error for Internal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ca_files_are_pem_certificates_or_one_clear_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let missing = read(&path).unwrap_err();
        assert_eq!(missing.to_string(), format!("open CA certificates {}", path.display()));
        assert!(std::error::Error::source(&missing).is_some());
        let section = |kind: &str, body: &str| format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n");
        for (content, problem) in [
            (String::new(), "found none"),
            ("not PEM".to_owned(), "found none"),
            (section("PRIVATE KEY", "AAAA"), "found none"),
            (section("CERTIFICATE", "?"), "found "),
            (section("CERTIFICATE", "AAAA"), "found at 1 of 1: "),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n".to_owned(), "found "),
        ] {
            std::fs::write(&path, &content).unwrap();
            let error = read(&path).unwrap_err().to_string();
            let start = format!("read CA certificates {}: expected certificates in PEM, {problem}", path.display());
            assert!(error.starts_with(&start), "{content:?}: {error}");
        }
        std::fs::write(&path, vec![b' '; CA_BYTES_MAX as usize + 1]).unwrap();
        assert!(matches!(read(&path), Err(Error::TooLarge { limit: CA_BYTES_MAX, .. })));
    }
}
