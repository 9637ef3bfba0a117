//! The payload of a measured job, the same for redrive and its peers: the JSON `{"data":"…"}` with a text that Postgres cannot compress.

/// The bytes of the payload around the text.
const FRAME_BYTES: usize = r#"{"data":""}"#.len();

/// The text with which the payload has `bytes` bytes. Empty if the JSON around it is already longer.
pub(crate) fn data(bytes: usize) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let digit = |_| {
        // xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(DIGITS[(state >> 58) as usize])
    };
    (FRAME_BYTES..bytes).map(digit).collect()
}
