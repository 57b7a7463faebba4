//! HTTPS: HTTP/2 and HTTP/1.1 over TLS, with an authority of our own.

mod common;

use std::convert::Infallible;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anabranch_fetch::{FetchError, Tls};
use bytes::Bytes;
use common::{Place, noise};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// A certificate for loopback and its key; `None` without the openssl command.
fn certificate(folder: &std::path::Path) -> Option<(CertificateDer<'static>, PrivateKeyDer<'static>)> {
    let (certificate, key) = (folder.join("certificate"), folder.join("key"));
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test \
                 -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
    let mut command = Command::new("openssl");
    command.args(words.split_whitespace()).arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    let made = command.output().ok()?;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some((CertificateDer::from_pem_file(certificate).unwrap(), PrivateKeyDer::from_pem_file(key).unwrap()))
}

/// A server of this content, by these protocols; counts requests by HTTP/2.
async fn server(
    content: Bytes,
    (certificate, key): (CertificateDer<'static>, PrivateKeyDer<'static>),
    protocols: &[&str],
) -> (String, Arc<AtomicUsize>) {
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let (acceptor, listener) =
        (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let url = format!("https://127.0.0.1:{}/file", listener.local_addr().unwrap().port());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, content, count) = (acceptor.clone(), content.clone(), count.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = service_fn(move |request: Request<Incoming>| {
                    count.fetch_add(usize::from(request.version() == Version::HTTP_2), Ordering::SeqCst);
                    let response = answer(&request, &content);
                    async move { Ok::<_, Infallible>(response) }
                });
                let io = TokioIo::new(stream);
                // The client may go away at any time.
                let _ = if is_h2 {
                    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(io, service)
                        .await
                } else {
                    hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
                };
            });
        }
    });
    (url, asked)
}

fn answer(request: &Request<Incoming>, content: &Bytes) -> Response<Full<Bytes>> {
    let range = request.headers()["range"].to_str().unwrap().strip_prefix("bytes=").unwrap();
    let (start, last) = range.split_once('-').unwrap();
    let (start, end) =
        (start.parse::<usize>().unwrap(), (last.parse::<usize>().unwrap() + 1).min(content.len()));
    let range = format!("bytes {start}-{}/{}", end - 1, content.len());
    let body = Full::new(content.slice(start..end));
    let response = Response::builder().status(206).header("content-range", range).header("etag", "\"a\"");
    response.body(body).unwrap()
}

#[tokio::test]
async fn files_come_by_http_2_and_by_http_1_over_tls() {
    let content = Bytes::from(noise(3_000_000, 40));
    for (protocols, is_h2) in [(&["h2", "http/1.1"][..], true), (&["http/1.1"], false), (&[], false)] {
        let folder = tempfile::tempdir().unwrap();
        let Some((certificate, key)) = certificate(folder.path()) else { return };
        let (url, asked) = server(content.clone(), (certificate.clone(), key), protocols).await;
        let mut place = Place::new(&[url]).over_addresses(&[2, 3]);
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        place.options.tls = Tls::trusting(roots).unwrap();
        place.fetch().await.unwrap();
        assert!(place.content() == content);
        assert_eq!(asked.load(Ordering::SeqCst) > 0, is_h2, "{protocols:?}");
    }
}

#[tokio::test]
async fn a_server_with_an_unknown_certificate_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(pair) = certificate(folder.path()) else { return };
    let (url, _) = server(Bytes::from_static(b"secret"), pair, &["http/1.1"]).await;
    let mut place = Place::new(&[url]);
    place.options.tls = Tls::trusting(RootCertStore::empty()).unwrap();
    let error = place.fetch().await.unwrap_err();
    assert!(matches!(&error, FetchError::Refused(tried) if tried[0].why.contains("ertificate")), "{error:?}");
    assert!(place.names().is_empty());
}
