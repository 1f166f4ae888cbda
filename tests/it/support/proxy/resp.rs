//! Where a request or a reply ends in a stream of bytes.

/// The peer does not speak RESP.
#[derive(Debug)]
pub(super) struct Malformed;

type Parsed<T> = Result<Option<T>, Malformed>;

/// The first request in `bytes` and its length, or `None` if it is not all there yet.
pub(super) fn request(bytes: &[u8]) -> Parsed<(Vec<Vec<u8>>, usize)> {
    let Some((head, mut at)) = line(bytes, 0) else {
        return Ok(None);
    };
    if head.first() != Some(&b'*') {
        let words = head
            .split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty());
        return Ok(Some((words.map(<[u8]>::to_vec).collect(), at)));
    }
    let mut args = Vec::new();
    for _ in 0..number(&head[1..])? {
        let Some((head, start)) = line(bytes, at) else {
            return Ok(None);
        };
        if head.first() != Some(&b'$') {
            return Err(Malformed);
        }
        let length = usize::try_from(number(&head[1..])?).map_err(|_| Malformed)?;
        let Some(arg) = bytes.get(start..start + length) else {
            return Ok(None);
        };
        args.push(arg.to_vec());
        at = start + length + 2;
    }
    Ok((at <= bytes.len()).then_some((args, at)))
}

/// The length of the first reply in `bytes`, with all that is nested in it.
pub(super) fn reply(bytes: &[u8]) -> Parsed<usize> {
    let mut at = 0;
    let mut expected = 1;
    while expected > 0 {
        let Some((head, next)) = line(bytes, at) else {
            return Ok(None);
        };
        let (kind, rest) = head.split_first().ok_or(Malformed)?;
        at = next;
        expected -= 1;
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            b'$' | b'=' | b'!' => {
                // A negative length stands for null.
                if let Ok(length) = usize::try_from(number(rest)?) {
                    at += length + 2;
                }
            }
            b'*' | b'~' | b'>' => expected += number(rest)?.max(0),
            b'%' => expected += 2 * number(rest)?.max(0),
            _ => return Err(Malformed),
        }
    }
    Ok((at <= bytes.len()).then_some(at))
}

/// The strings at the head of a reply that is an array, which is how Redis frames what it pushes to subscribers.
pub(super) fn strings(reply: &[u8]) -> Vec<&[u8]> {
    let mut strings = Vec::new();
    let mut at = match line(reply, 0) {
        Some((head, next)) if matches!(head.first(), Some(b'*' | b'>')) => next,
        _ => return strings,
    };
    while let Some((head, start)) = line(reply, at)
        && let Some((b'$', length)) = head.split_first()
        && let Ok(length) = number(length)
        && let Ok(length) = usize::try_from(length)
        && let Some(string) = reply.get(start..start + length)
    {
        strings.push(string);
        at = start + length + 2;
    }
    strings
}

/// The line that starts at `at`, and where the next one starts.
fn line(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    Some((rest[..end].trim_ascii_end(), at + end + 1))
}

fn number(digits: &[u8]) -> Result<i64, Malformed> {
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .ok_or(Malformed)
}
