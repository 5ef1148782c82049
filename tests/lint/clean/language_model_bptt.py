"""A recurrent language model: hidden states go on, their graph does not."""

import math

import torch


def repackage(hidden):
    return hidden.detach() if isinstance(hidden, torch.Tensor) else tuple(repackage(part) for part in hidden)


def get_batch(source, i, bptt):
    length = min(bptt, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


def evaluate(model, criterion, source, bptt, batch_size):
    model.eval()
    total = 0.0
    hidden = model.init_hidden(batch_size)
    with torch.no_grad():
        for i in range(0, source.size(0) - 1, bptt):
            data, targets = get_batch(source, i, bptt)
            output, hidden = model(data, hidden)
            hidden = repackage(hidden)
            total += len(data) * criterion(output, targets).item()
    return total / (len(source) - 1)


def train(model, criterion, source, lr, bptt, batch_size, clip, log_interval):
    model.train()
    total = 0.0
    hidden = model.init_hidden(batch_size)
    for batch, i in enumerate(range(0, source.size(0) - 1, bptt)):
        data, targets = get_batch(source, i, bptt)
        model.zero_grad()
        hidden = repackage(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total += loss.item()
        if batch % log_interval == 0 and batch > 0:
            print(f"{batch} {total / log_interval:.2f} {math.exp(total / log_interval):.2f}")
            total = 0.0


def main(model, criterion, data, args):
    lr, best = args.lr, None
    for _ in range(args.epochs):
        train(model, criterion, data.train, lr, args.bptt, args.batch_size, args.clip, args.log_interval)
        loss = evaluate(model, criterion, data.valid, args.bptt, 10)
        if best is None or loss < best:
            best = loss
            torch.save(model.state_dict(), args.save)
        else:
            lr /= 4.0
    model.load_state_dict(torch.load(args.save, map_location="cpu", weights_only=True))
    print(evaluate(model, criterion, data.test, args.bptt, 10))
