//! QUIC inside the tunnel: its packets are UDP, and it brings congestion control of its own.

use super::*;

/// A server that answers each stream with so many bytes, and a client that asks for them. Written with `aioquic`.
const SCRIPT: &str = r"
import asyncio, datetime, hashlib, ssl, sys, time
from aioquic.asyncio import connect, serve
from aioquic.quic.configuration import QuicConfiguration

role, address, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = bytes(range(256)) * (size // 256)

async def answer(reader, writer):
    await reader.read()
    writer.write(data)
    writer.write_eof()

async def serving():
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, 'test')])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - day).not_valid_after(now + day)
    settings = QuicConfiguration(is_client=False, alpn_protocols=['test'])
    settings.certificate, settings.private_key = made.sign(key, hashes.SHA256()), key
    await serve(address, 5443, configuration=settings,
                stream_handler=lambda r, w: asyncio.ensure_future(answer(r, w)))
    print('ready', flush=True)
    await asyncio.Future()

async def asking():
    settings = QuicConfiguration(is_client=True, alpn_protocols=['test'], verify_mode=ssl.CERT_NONE)
    settings.max_data = settings.max_stream_data = 1 << 26
    async with connect(address, 5443, configuration=settings) as session:
        reader, writer = await session.create_stream()
        begin = time.time()
        writer.write_eof()
        got = await reader.read()
        seconds = time.time() - begin
    print('whole' if got == data else 'damaged', round(len(got) * 8e-6 / seconds, 1), flush=True)

asyncio.run(serving() if role == 'serve' else asking())
";

#[test]
fn a_quic_download_comes_whole_through_every_lane() {
    let test = "a_quic_download_comes_whole_through_every_lane";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let has_library = Command::new("python3").args(["-c", "import aioquic"]).stderr(Stdio::null()).status();
    if !has_library.is_ok_and(|status| status.success()) {
        return skip(test, "the Python library aioquic is not installed");
    }
    let size = "2000128";
    for lane in ["auto", "routed", "striped", "protected"] {
        let tunnel = Tunnel::up(&machines, &["--lane", lane]);
        let words = ["-c", SCRIPT, "serve", PUBLIC, size];
        let mut server = Running::start(machines.command(Side::Far, "python3").args(words));
        assert_eq!(server.line().trim(), "ready");
        let words = ["240", "python3", "-c", SCRIPT, "ask", PUBLIC, size];
        let output = machines.command(Side::Near, "timeout").args(words).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(told.starts_with("whole "), "{lane}: {told}{}", String::from_utf8_lossy(&output.stderr));
        common::say(&format!("{test}: {lane}: {} Mbit/s", told.split_whitespace().last().unwrap()));
        assert!(tunnel.status(Side::Far)["peers"][0]["sent"]["bytes"].as_u64().unwrap() > 2_000_000);
    }
}
