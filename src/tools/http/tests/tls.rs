//! TLS: a handshake that fails has sent nothing, and an end that TLS did not announce is a cut.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::server::{End, Server};
use super::*;

const CERTIFICATE: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/tls/cert.pem"));
const PRIVATE_KEY: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/tls/key.pem"));

fn certificate() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(CERTIFICATE).unwrap()
}

fn trusting() -> TlsSetup {
    let mut roots = RootCertStore::empty();
    roots.add(certificate()).unwrap();
    TlsSetup::trusting(roots)
}

/// Trusts somebody, and not the test's server.
fn trusting_others() -> TlsSetup {
    let anchor = rustls::pki_types::TrustAnchor {
        subject: vec![0x30, 0].into(),
        subject_public_key_info: vec![0x30, 0].into(),
        name_constraints: None,
    };
    TlsSetup::trusting(RootCertStore { roots: vec![anchor] })
}

/// Answers one request over TLS; joins to the bytes of plain text that arrived.
fn serve(answer: &'static str, goodbye: bool) -> (String, JoinHandle<Vec<u8>>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate()], PrivateKeyDer::from_pem_slice(PRIVATE_KEY).unwrap())
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/payments", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        let mut arrived = Vec::new();
        let mut buffer = [0; 4096];
        while !arrived.ends_with(br#"{"n": 1}"#) {
            match stream.read(&mut buffer) {
                Ok(read) if read > 0 => arrived.extend_from_slice(&buffer[..read]),
                Ok(_) | Err(_) => return arrived,
            }
        }
        stream.write_all(answer.as_bytes()).unwrap();
        if goodbye {
            stream.conn.send_close_notify();
        }
        stream.flush().unwrap();
        arrived
    });
    (url, serving)
}

async fn send_to(url: &str, tls: &TlsSetup) -> Verdict {
    let settings = settings(url, EffectClass::UnkeyedWrite);
    send(&HttpTool::new(settings, None, Some(tls)).unwrap()).await
}

#[tokio::test]
async fn a_tool_is_called_over_tls() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    let (url, serving) = serve(answer, true);
    let verdict = send_to(&url, &trusting()).await;
    assert_eq!(kind(&verdict), Kind::Completed);
    let arrived = serving.join().unwrap();
    assert!(String::from_utf8(arrived).unwrap().contains(KEY));
}

#[tokio::test]
async fn a_server_that_is_not_trusted_is_sent_nothing() {
    let (url, serving) = serve("", true);
    let verdict = send_to(&url, &trusting_others()).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::NotSent, Phase::Connect));
    assert_eq!(verdict.branch(), Some(Branch::NotSent));
    assert_eq!(verdict.failure().unwrap().message, "the server's certificate is not trusted");
    assert_eq!(serving.join().unwrap(), b"");
}

#[tokio::test]
async fn a_port_that_speaks_no_tls_is_sent_nothing() {
    let server = Server::with("", End::Stall).await;
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", plain.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut socket, _) = plain.accept().unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let verdict = send_to(&url, &trusting()).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::NotSent, Phase::Connect));
    assert_eq!(verdict.branch(), Some(Branch::NotSent));
    serving.join().unwrap();
    // And one that never answers the handshake: the connect time-out covers that too.
    let mut settings =
        settings(&format!("https://127.0.0.1:{}/", server.port()), EffectClass::UnkeyedWrite);
    settings.connect_timeout = Duration::from_millis(200);
    let verdict = send(&HttpTool::new(settings, None, Some(&trusting())).unwrap()).await;
    assert_eq!((kind(&verdict), phase(&verdict)), (Kind::NotSent, Phase::Connect));
    assert_eq!(verdict.branch(), Some(Branch::NotSent));
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn an_end_that_tls_did_not_announce_is_a_cut() {
    let answer = "HTTP/1.1 200 OK\r\n\r\n{\"a\":1}";
    for (goodbye, expected) in [(true, Kind::Completed), (false, Kind::Ambiguous)] {
        let (url, serving) = serve(answer, goodbye);
        let verdict = send_to(&url, &trusting()).await;
        assert_eq!(kind(&verdict), expected, "announced: {goodbye}");
        serving.join().unwrap();
    }
}

#[tokio::test]
async fn https_without_any_trusted_certificate_is_no_tool() {
    let tls = TlsSetup::trusting(RootCertStore::empty());
    let https = settings("https://127.0.0.1/", EffectClass::Read);
    assert!(matches!(HttpTool::new(https, None, Some(&tls)), Err(TlsError::NoCertificates)));
    let http = settings("http://127.0.0.1/", EffectClass::Read);
    assert!(HttpTool::new(http, None, Some(&tls)).is_ok());
}
