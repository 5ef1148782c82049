"""NumPy, JAX and TensorFlow beside PyTorch: their losses keep no graph of autograd's."""

import jax
import numpy as np
import tensorflow as tf
import torch
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler


def numpy_epoch(weights, batches, lr):
    total, losses = 0.0, []
    for x, y in batches:
        error = x @ weights - y
        loss = np.mean(error**2)
        weights -= lr * x.T @ error / len(x)
        total += loss
        losses.append(loss)
    return weights, total / len(losses)


def jax_epoch(state, batches, loss_fn):
    losses = []
    for batch in batches:
        loss, gradient = jax.value_and_grad(loss_fn)(state.params, batch)
        state = state.apply_gradients(grads=gradient)
        losses.append(loss)
    return state, np.mean(jax.device_get(losses))


def tensorflow_epoch(model, dataset, optimizer, loss_object):
    train_loss = 0.0
    for x, y in dataset:
        with tf.GradientTape() as tape:
            loss = loss_object(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_loss += loss
    return train_loss / len(dataset)


def probe(encoder, loader):
    features, labels = [], []
    encoder.eval()
    with torch.no_grad():
        for x, y in loader:
            features.append(encoder(x.cuda()).cpu().numpy())
            labels.append(y.numpy())
    scaler = StandardScaler()
    model = SGDClassifier()
    model.fit(scaler.fit_transform(np.concatenate(features)), np.concatenate(labels))
    return model
