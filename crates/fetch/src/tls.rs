//! TLS with the system's certificate authorities.

use std::io;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

use crate::http::describe;
use crate::plan::Trouble;
use crate::route::Wire;

/// Opens TLS connections.
#[derive(Clone)]
pub struct Tls {
    http: TlsConnector,
    other: TlsConnector,
}

impl Tls {
    /// Reads the system's certificate authorities, or those that `SSL_CERT_FILE` or `SSL_CERT_DIR` name.
    pub fn new() -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        let (_, refused) = roots.add_parsable_certificates(found.certs);
        if refused > 0 || !found.errors.is_empty() {
            tracing::debug!(refused, errors = ?found.errors, "some certificates of authorities are not read");
        }
        Self::trusting(roots)
    }

    /// Trusts these certificate authorities only.
    pub fn trusting(roots: RootCertStore) -> io::Result<Self> {
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut http = config.clone();
        http.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { http: Arc::new(http).into(), other: Arc::new(config).into() })
    }

    /// Starts TLS for HTTP; also returns whether the server chose HTTP/2.
    pub async fn http(&self, wire: Wire, host: &str) -> io::Result<(TlsStream<Wire>, bool)> {
        let stream = start(&self.http, wire, host).await?;
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok((stream, is_h2))
    }

    /// Starts TLS for another protocol.
    pub async fn other(&self, wire: Wire, host: &str) -> io::Result<TlsStream<Wire>> {
        start(&self.other, wire, host).await
    }
}

/// A connection that failed; without hope if the server is not the one that it should be, or if an exit does not connect to it.
pub(crate) fn trouble(error: &io::Error) -> Trouble {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    let why = describe(error);
    if matches!(cause, Some(Error::InvalidCertificate(_))) || error.kind() == io::ErrorKind::PermissionDenied
    {
        Trouble::Useless(why)
    } else {
        Trouble::Failed(why)
    }
}

async fn start(connector: &TlsConnector, wire: Wire, host: &str) -> io::Result<TlsStream<Wire>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    connector.connect(name, wire).await
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}
