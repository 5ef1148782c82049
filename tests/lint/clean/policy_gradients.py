"""Reinforcement learning: log probabilities are kept with their graph on purpose, until the episode's backward."""

import torch
from torch.distributions import Categorical


def reinforce(policy, env, optimizer, episodes, gamma=0.99):
    returns_seen = []
    for episode in range(episodes):
        state, log_probs, rewards, done = env.reset(), [], [], False
        while not done:
            distribution = Categorical(logits=policy(torch.as_tensor(state).float()))
            action = distribution.sample()
            log_probs.append(distribution.log_prob(action))
            state, reward, done = env.step(action.item())
            rewards.append(reward)
        value, discounted = 0.0, []
        for reward in reversed(rewards):
            value = reward + gamma * value
            discounted.insert(0, value)
        weights = torch.tensor(discounted)
        weights = (weights - weights.mean()) / (weights.std() + 1e-8)
        policy_loss = []
        for log_prob, weight in zip(log_probs, weights):
            policy_loss.append(-log_prob * weight)
        optimizer.zero_grad()
        torch.stack(policy_loss).sum().backward()
        optimizer.step()
        returns_seen.append(sum(rewards))
    return returns_seen


def ppo_update(agent, optimizer, buffer, clip, epochs, minibatches, max_norm):
    clip_fractions = []
    for _ in range(epochs):
        for batch in buffer.minibatches(minibatches):
            log_prob, entropy, value = agent.evaluate(batch.observations, batch.actions)
            ratio = (log_prob - batch.log_probs).exp()
            with torch.no_grad():
                clip_fractions.append(((ratio - 1).abs() > clip).float().mean().item())
            gain = torch.min(ratio * batch.advantages, ratio.clamp(1 - clip, 1 + clip) * batch.advantages)
            loss = -gain.mean() - 0.01 * entropy.mean() + 0.5 * (value - batch.returns).square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.parameters(), max_norm)
            optimizer.step()
    return sum(clip_fractions) / len(clip_fractions)


@torch.no_grad()
def collect(agent, envs, buffer, steps):
    observation = envs.reset()
    for _ in range(steps):
        action, log_prob, value = agent.act(observation)
        observation, reward, done = envs.step(action.cpu().numpy())
        buffer.add(observation, action, log_prob, value, reward, done)
