//! The content type of a file, by the end of its name.

/// The content type, and whether browsers may show the file: they run nothing that is in it.
pub(super) fn of(name: &str) -> (&'static str, bool) {
    let end = name.rsplit_once('.').map_or("", |(_, end)| end).to_ascii_lowercase();
    match &*end {
        "txt" | "text" | "log" | "md" | "csv" | "conf" | "ini" | "toml" | "yaml" | "yml" | "rs" | "py"
        | "sh" | "c" | "h" | "diff" | "patch" => ("text/plain; charset=utf-8", true),
        "css" => ("text/css; charset=utf-8", true),
        "json" => ("application/json", true),
        "pdf" => ("application/pdf", true),
        "png" => ("image/png", true),
        "jpg" | "jpeg" => ("image/jpeg", true),
        "gif" => ("image/gif", true),
        "webp" => ("image/webp", true),
        "avif" => ("image/avif", true),
        "ico" => ("image/x-icon", true),
        "mp4" | "m4v" => ("video/mp4", true),
        "webm" => ("video/webm", true),
        "mkv" => ("video/x-matroska", true),
        "mov" => ("video/quicktime", true),
        "mp3" => ("audio/mpeg", true),
        "m4a" => ("audio/mp4", true),
        "ogg" | "oga" | "opus" => ("audio/ogg", true),
        "flac" => ("audio/flac", true),
        "wav" => ("audio/wav", true),
        "htm" | "html" => ("text/html; charset=utf-8", false),
        "js" | "mjs" => ("text/javascript; charset=utf-8", false),
        "svg" => ("image/svg+xml", false),
        "xml" => ("application/xml", false),
        "wasm" => ("application/wasm", false),
        "zip" => ("application/zip", false),
        "gz" | "tgz" => ("application/gzip", false),
        "xz" => ("application/x-xz", false),
        "zst" => ("application/zstd", false),
        "tar" => ("application/x-tar", false),
        _ => ("application/octet-stream", false),
    }
}
