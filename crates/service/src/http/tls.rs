//! TLS for an API that other machines reach (RFC 8446, by rustls): a certificate chain and its private key, read once at the start.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The files that TLS needs, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those that link it to an authority.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub private_key: PathBuf,
}

impl TlsFiles {
    pub(super) fn acceptor(&self) -> io::Result<TlsAcceptor> {
        let chain = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .and_then(|chain| if chain.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(chain) })
            .map_err(|error| unread("certificate", &self.certificate, error))?;
        let key = PrivateKeyDer::from_pem_file(&self.private_key)
            .map_err(|error| unread("private key", &self.private_key, error))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| {
                let files = format!("{} with {}", self.certificate.display(), self.private_key.display());
                io::Error::new(io::ErrorKind::InvalidData, format!("cannot serve TLS by {files}: {error}"))
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn unread(what: &str, file: &Path, error: pem::Error) -> io::Error {
    let (kind, why) = match error {
        pem::Error::Io(error) => (error.kind(), error.to_string()),
        pem::Error::NoItemsFound => (io::ErrorKind::InvalidData, format!("there is no {what} in it")),
        error => (io::ErrorKind::InvalidData, error.to_string()),
    };
    io::Error::new(kind, format!("cannot read the {what} in {} (PEM): {why}", file.display()))
}
